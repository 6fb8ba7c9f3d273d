"""The style sheet of the report: light and dark by the reader's own setting, narrow and wide, on paper."""

STYLE = """
:root{color-scheme:light dark;
--page:#f6f7f9;--card:#fff;--ink:#1a1d23;--soft:#59616e;--rule:#dfe3e9;--hair:#eceff3;
--flow:#2f6fb5;--flow-soft:#b9d2ec;--good:#1b7f4d;--calm:#2f7280;--warn:#a86200;--bad:#c22f2a;--held:#7a5fb0;
--tint-good:#e4f4ea;--tint-bad:#fde9e7;--tint-warn:#fff4df}
@media(prefers-color-scheme:dark){:root{
--page:#111418;--card:#191d23;--ink:#e8ebef;--soft:#a3acb9;--rule:#303743;--hair:#252b34;
--flow:#6fb0f2;--flow-soft:#2c4d70;--good:#58c98d;--calm:#6fb6c4;--warn:#eeb054;--bad:#ff8078;--held:#b49ae8;
--tint-good:#163324;--tint-bad:#42201f;--tint-warn:#3a2d14}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0 auto;padding:0 20px 48px;max-width:1080px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans",sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:break-word}
h1,h2,h3,p,dl,dd,figure,ul,ol{margin:0}
h1{font-size:30px;line-height:1.15;letter-spacing:-.02em}
h2{font-size:20px;line-height:1.3;letter-spacing:-.01em}
h3{font-size:14px;margin:24px 0 4px}
code,.name{overflow-wrap:anywhere}
code{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.name{unicode-bidi:isolate}
.faint,.lead,figcaption,footer{color:var(--soft)}
.faint,figcaption{font-size:13px}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.calm{color:var(--calm)}.nothing{color:var(--soft)}
header{display:flex;flex-wrap:wrap;align-items:center;gap:12px 20px;padding:32px 0 20px}
.verdict{padding:5px 14px;border-radius:99px;font-weight:600;font-size:14px;background:var(--hair);color:var(--soft)}
.verdict.good{background:var(--tint-good);color:var(--good)}
.verdict.bad{background:var(--tint-bad);color:var(--bad)}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;width:100%;font-size:14px}
a{color:var(--flow);text-decoration:none}a:hover{text-decoration:underline}
:focus-visible{outline:2px solid var(--flow);outline-offset:2px;border-radius:4px}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:22px 24px 24px;margin:0 0 16px}
.lead{margin:4px 0 16px;max-width:74ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:16px 20px}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{font-size:22px;font-weight:600;letter-spacing:-.01em;line-height:1.3}
.note{margin-top:20px;padding:12px 16px;border-radius:8px;background:var(--tint-warn)}
.note h3{margin:0 0 4px}.note details{margin:0}.note ul{padding-left:18px}
.equation{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;margin-bottom:12px;
color:var(--soft);white-space:pre}
.equation b{font-size:24px;letter-spacing:-.01em}.equation .term:first-child b{color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 16px;font-size:13px;color:var(--soft)}
.entry{display:inline-flex;align-items:center;gap:7px}
.key{width:16px;height:8px;border-radius:2px;background:currentColor}
.key.well,.key.body{background:var(--flow)}.key.ailing{background:var(--warn)}.key.sick{background:var(--bad)}
.key.tail{background:var(--flow-soft);height:4px}.key.middle{background:var(--ink);width:3px;height:12px}
svg{display:block;width:100%}
svg.bars{height:30px}svg.bars.tall{height:84px}.wide-bars{margin-top:22px}.wide-bars svg.bars{height:72px}
svg.strip{height:18px}svg.parts{height:14px;border-radius:4px}
svg .flow{fill:var(--flow)}svg .drop{fill:var(--bad)}svg .move{fill:var(--warn)}
svg .held{fill:var(--held);fill-opacity:.75}
svg .good{fill:var(--good)}svg .calm{fill:var(--calm)}svg .warn{fill:var(--warn)}svg .bad{fill:var(--bad)}
svg .tail{fill:var(--flow-soft)}svg .body{fill:var(--flow)}svg .middle{fill:var(--ink)}
svg line,svg .grid{fill:none;vector-effect:non-scaling-stroke;stroke:var(--rule);stroke-width:1}
svg .mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4}
.span,.axis{display:flex;justify-content:space-between;color:var(--soft);font-size:11.5px;font-weight:400;line-height:1.5}
.axis{display:block;position:relative;height:17px}
.axis span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.map{height:auto;margin:0 auto}
.map .lanes path{fill:none;stroke:var(--flow);stroke-opacity:.5;stroke-linecap:butt}
.map .lanes .ailing{stroke:var(--warn);stroke-opacity:.9}.map .lanes .sick{stroke:var(--bad);stroke-opacity:.9}
.map .loss{font-size:11px;font-weight:600;text-anchor:middle;paint-order:stroke;stroke:var(--card);stroke-width:4px;
stroke-linejoin:round}.map .loss.sick{fill:var(--bad)}.map .loss.ailing{fill:var(--warn)}
.map .lanes g:hover path{stroke-opacity:1}
.station rect{fill:var(--card);stroke:var(--rule);stroke-width:1}
.station.sick rect{stroke:var(--bad)}.station.ailing rect{stroke:var(--warn)}.station:hover rect{stroke:var(--flow)}
.station text{fill:var(--soft);font-size:11px;text-anchor:middle}
.station .title{fill:var(--ink);font-size:13px;font-weight:600}
.station .sick{fill:var(--bad)}.station .ailing{fill:var(--warn)}
figure.narrow{display:none}
.plain .name,.plain code,.plain td,.plain th{overflow-wrap:normal;white-space:nowrap}
.scroll{overflow-x:auto;max-width:100%}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{padding:6px 14px 6px 0;text-align:left;vertical-align:middle;border-bottom:1px solid var(--hair);font-weight:400}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--soft);font-size:12.5px;border-color:var(--rule);vertical-align:bottom}
.number{text-align:right;white-space:nowrap}
.plot{width:42%;min-width:110px}td.plot{padding-top:5px;padding-bottom:5px}
.ranges table{table-layout:fixed}.ranges th:first-child{width:35%}.ranges .plot{width:30%}
.meter{display:block;height:6px;border-radius:3px;background:var(--hair);min-width:70px}
th.meter{display:table-cell;height:auto;background:none}td.meter{display:table-cell;height:auto;background:none;width:18%}
.meter .meter>span{display:block;height:6px;border-radius:3px;background:var(--flow)}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
details{margin-top:14px}summary{cursor:pointer;color:var(--flow);font-size:14px;width:fit-content}
details>div{margin-top:8px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));gap:14px}
.card{border:1px solid var(--hair);border-radius:10px;padding:12px 14px}
.card figcaption{color:var(--ink);font-size:14px;font-weight:600}
.figures{display:flex;flex-wrap:wrap;gap:0 14px;margin:2px 0 8px;font-size:13px;color:var(--soft)}
.figures b{color:var(--ink)}.figures .good{color:var(--good)}.figures .bad{color:var(--bad)}
.loops{list-style:none;padding:0}.loops li{padding:8px 0;border-bottom:1px solid var(--hair)}
.chain{line-height:2}.step,.again{padding:2px 9px;border-radius:6px;background:var(--hair);font-size:14px}
.again{background:var(--tint-bad);color:var(--bad);font-weight:600}
footer{font-size:13px;padding:8px 4px}
@media(max-width:640px){body{padding:0 12px 32px}header{padding:22px 4px 14px}h1{font-size:26px}
section{padding:18px 16px;border-radius:10px}.aside{display:none}.plain .aside{display:table-cell}
figure.wide{display:none}figure.narrow{display:block}
.tiles{grid-template-columns:repeat(2,1fr);gap:12px}.equation b{font-size:20px}
.cards{grid-template-columns:1fr}th,td{padding-right:10px}.plot{width:50%;min-width:96px}
.ranges th:first-child{width:36%}.ranges .plot{width:40%}
.station .title{font-size:11px}.axis span:nth-child(even){display:none}table{font-size:13px}nav{gap:4px 12px}}
@media print{:root{color-scheme:light;--page:#fff}body{max-width:none;padding:0;font-size:11px}nav,summary{display:none}
section{border:0;padding:0 0 12px;break-inside:auto}h2,h3{break-after:avoid}tr,figure,.card,li{break-inside:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
details::details-content{content-visibility:visible;display:block;height:auto}
.scroll{overflow:visible}}
""".strip()
"""Whole, without anything that comes from results."""
