"""
The questions of the pipeline in SQL, for DuckDB: an independent engine whose answers tests compare with Spark's.

Each statement asks `visits`, which has the columns of the journal, and gives the columns of its schema in
`broker.pipeline.results`, but for maps and the recommendations that are made of other columns. `$grace_us` is the time
at the end of a history in which nobody knows what is lost, `$window_seconds` the length of a window.
"""

from __future__ import annotations

from collections.abc import Sequence


def visits_of(files: Sequence[str]) -> str:
    """The statement that makes `visits` of files, which may be of several versions."""
    names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return (
        "CREATE OR REPLACE VIEW visits AS SELECT * "
        f"FROM read_parquet([{names}], union_by_name = true, hive_partitioning = false)"
    )


PATHS = """
WITH horizon AS (
    SELECT epoch_us(greatest(max(left_at), max(entered_at))) - $grace_us AS under_way_after FROM visits
), known AS (
    SELECT *,
        CASE WHEN outcome IN ('sent', 'resent') THEN 0 ELSE hop_count + 1 END AS step,
        epoch_us(entered_at) AS came, epoch_us(left_at) AS went
    FROM visits WHERE outcome <> 'acknowledged'
), acknowledged AS (
    SELECT DISTINCT message_id FROM visits WHERE outcome = 'acknowledged'
), measured AS (
    SELECT *,
        step - lag(step) OVER way = 1 AS is_next,
        came - lag(went) OVER way AS took,
        lag(instance) OVER way AS came_from,
        row_number() OVER way AS place,
        row_number() OVER back = 1 AS is_last,
        first_value(step) OVER way = 0 AS is_of_sender,
        first_value(instance) OVER way AS sender,
        went - first_value(went) OVER way AS lasted
    FROM known
    WINDOW way AS (PARTITION BY message_id ORDER BY step), back AS (PARTITION BY message_id ORDER BY step DESC)
), apart AS (
    SELECT DISTINCT least(instance, came_from) AS one, greatest(instance, came_from) AS other
    FROM measured WHERE is_next AND took < -10000 AND instance <> came_from
    UNION
    SELECT DISTINCT least(instance, sender), greatest(instance, sender)
    FROM measured WHERE is_last AND is_of_sender AND lasted < -10000 AND instance <> sender
), stepped AS (
    SELECT measured.*, link.one IS NOT NULL AS is_apart, ends.one IS NOT NULL AS is_wholly_apart
    FROM measured
    LEFT JOIN apart AS link ON link.one = least(instance, came_from) AND link.other = greatest(instance, came_from)
    LEFT JOIN apart AS ends ON ends.one = least(instance, sender) AND ends.other = greatest(instance, sender)
), gathered AS (
    SELECT message_id, any_value(conversation_id) AS conversation_id, any_value(from_target) AS from_target,
        any_value(kind) AS kind, any_value(sequence_number) AS sequence_number,
        any_value(fragment_number) AS fragment_number, any_value(from_service) AS from_service,
        any_value(to_service) AS to_service, arg_min(bytes, step) AS bytes,
        bool_or(outcome = 'resent') AS is_resend, min(step) = 0 AS has_sender,
        min(CASE WHEN step = 0 THEN went END) AS left_sender, min(came) AS first_came,
        greatest(max(went), max(CASE WHEN step > 0 THEN came END)) AS ended,
        arg_max(went, step) AS last_went,
        list(instance ORDER BY step) AS path, list(adjacent_out ORDER BY step) AS next_hops,
        list(went - came ORDER BY step) AS residence_us,
        arg_max(is_wholly_apart, step) OR bool_or(is_apart) AS crosses,
        list(CASE WHEN is_next AND took >= 0 AND NOT is_apart THEN took END ORDER BY step)
            FILTER (place > 1) AS link_us,
        arg_max(outcome, step) AS outcome, arg_max(instance, step) AS end_instance,
        arg_max(coalesce(adjacent_out, ''), step) AS given_to,
        arg_max(coalesce(reason, ''), step) AS reason, arg_max(coalesce(code, 0), step) AS code,
        count(DISTINCT instance) < count(*) AS has_loop,
        max(step) + 1 - count(*) AS missing_hops,
        count(*) FILTER (is_next AND (took < 0 OR is_apart)) AS unknown_links
    FROM stepped GROUP BY message_id
), judged AS (
    SELECT gathered.*, CASE
        WHEN outcome IN ('delivered', 'duplicate', 'dropped') THEN outcome
        WHEN acknowledged.message_id IS NOT NULL THEN 'acknowledged'
        WHEN last_went >= under_way_after THEN 'under way'
        ELSE 'lost' END AS "end"
    FROM gathered LEFT JOIN acknowledged USING (message_id) CROSS JOIN horizon
)
SELECT message_id, conversation_id, from_target, kind, sequence_number, fragment_number, from_service, to_service,
    bytes, CASE WHEN has_sender THEN is_resend END AS is_resend,
    make_timestamptz(CASE WHEN has_sender THEN left_sender ELSE first_came END) AS started_at,
    make_timestamptz(ended) AS ended_at,
    path, next_hops, residence_us, coalesce(link_us, []) AS link_us,
    CASE WHEN has_sender AND last_went >= left_sender AND NOT crosses THEN last_went - left_sender END
        AS total_us,
    "end", CASE WHEN "end" <> 'acknowledged' THEN end_instance END AS end_instance,
    CASE WHEN "end" = 'lost' THEN given_to END AS lost_to,
    CASE WHEN "end" = 'dropped' THEN reason END AS reason, CASE WHEN "end" = 'dropped' THEN code END AS code,
    has_loop, missing_hops, unknown_links
FROM judged
"""

RECONCILE = """
WITH horizon AS (
    SELECT greatest(max(left_at), max(entered_at)) AS newest FROM visits
), transmissions AS (
    SELECT conversation_id, from_target, from_service, to_service, sequence_number, fragment_number, message_id,
        count(*) FILTER (outcome IN ('sent', 'resent')) AS sent,
        count(*) FILTER (outcome = 'resent') AS resent,
        count(*) FILTER (outcome = 'delivered') AS delivered,
        count(*) FILTER (outcome = 'duplicate') AS duplicates,
        count(*) FILTER (outcome = 'dropped') AS dropped,
        count(*) FILTER (outcome = 'acknowledged') AS acknowledged,
        max(left_at) AS seen,
        max(left_at) FILTER (outcome = 'dropped') AS dropped_at,
        max(reason) FILTER (outcome = 'dropped') AS reason
    FROM visits WHERE kind = 'message' GROUP BY ALL
), places AS (
    SELECT conversation_id, from_target, from_service, to_service, sequence_number, fragment_number,
        sum(sent) > 0 AS is_sent, sum(delivered) > 0 AS is_delivered, sum(delivered) > 1 AS is_doubled,
        is_delivered OR sum(acknowledged) > 0 AS has_arrived,
        count(*) AS transmissions,
        count(*) FILTER (resent > 0) AS resent,
        count(*) FILTER (dropped > 0) AS dropped,
        count(*) FILTER (duplicates > 0) AS duplicates,
        count(*) FILTER (delivered + duplicates + dropped = 0
            AND epoch_us(seen) <= epoch_us(newest) - $grace_us) AS gone,
        count(*) FILTER (delivered + duplicates + dropped = 0 AND acknowledged > 0
            AND epoch_us(seen) <= epoch_us(newest) - $grace_us) AS gone_acknowledged,
        gone - CASE WHEN is_delivered THEN 0 ELSE gone_acknowledged END AS lost,
        epoch_us(max(seen)) > epoch_us(any_value(newest)) - $grace_us AS is_late,
        epoch_us(max(seen)) > epoch_us(any_value(newest)) - 900000000 AS is_behind,
        arg_max(reason, dropped_at) AS reason
    FROM transmissions CROSS JOIN horizon GROUP BY ALL
), told AS (
    SELECT *,
        max(CASE WHEN is_sent THEN sequence_number END) OVER (PARTITION BY conversation_id, from_target) AS sent_to
    FROM places
), judged AS (
    SELECT *, is_sent AND NOT has_arrived AND NOT is_late AS is_missing,
        NOT is_sent AND has_arrived AS is_unsent,
        NOT is_sent AND has_arrived AND sent_to IS NOT NULL AND (sequence_number < sent_to OR NOT is_behind)
            AS is_invented
    FROM told
), dialogs AS (
    SELECT conversation_id, from_target, from_service, to_service,
        count(*) FILTER (is_sent) AS sent,
        count(*) FILTER (is_delivered) AS delivered,
        count(*) FILTER (has_arrived AND NOT is_delivered) AS acknowledged,
        count(*) FILTER (is_sent AND NOT has_arrived AND is_late) AS under_way,
        count(*) FILTER (is_missing) AS missing,
        count(*) FILTER (is_doubled) AS doubled,
        count(*) FILTER (is_unsent AND NOT is_invented) AS untold,
        count(*) FILTER (is_invented) AS invented,
        sum(transmissions)::BIGINT AS transmissions, sum(resent)::BIGINT AS resent, sum(dropped)::BIGINT AS dropped,
        sum(lost)::BIGINT AS lost, sum(duplicates)::BIGINT AS duplicates,
        CASE WHEN missing + doubled + invented > 0 THEN false WHEN count(*) FILTER (is_sent) > 0 THEN true END
            AS adds_up,
        coalesce(list({
            'sequence_number': sequence_number, 'fragment_number': fragment_number,
            'problem': CASE WHEN is_missing THEN 'missing' WHEN is_doubled THEN 'doubled' ELSE 'invented' END,
            'reason': CASE WHEN is_missing THEN reason END
        } ORDER BY sequence_number, fragment_number) FILTER (is_missing OR is_doubled OR is_invented), [])[:20]
            AS problems
    FROM judged GROUP BY conversation_id, from_target, from_service, to_service
)
SELECT * FROM dialogs
UNION ALL
SELECT NULL, NULL, NULL, NULL, sum(sent), sum(delivered), sum(acknowledged), sum(under_way), sum(missing), sum(doubled),
    sum(untold), sum(invented), sum(transmissions), sum(resent), sum(dropped), sum(lost), sum(duplicates),
    bool_and(adds_up), NULL
FROM dialogs HAVING count(*) > 0
"""

CAPACITY = """
WITH passed AS (
    SELECT instance, epoch_us(entered_at) AS came, epoch_us(left_at) AS went, bytes::BIGINT AS bytes,
        $window_seconds * 1000000 AS length
    FROM visits WHERE outcome IN ('forwarded', 'dropped')
), steps AS (
    SELECT instance, came // length * length AS begins, came AS moment, (went > came)::BIGINT AS frames,
        CASE WHEN went > came THEN bytes ELSE 0 END AS bytes, true AS is_entry FROM passed
    UNION ALL
    SELECT instance, (went - 1) // length * length, went, -1, -bytes, false FROM passed WHERE went > came
), running AS (
    SELECT instance, begins, is_entry, frames, bytes,
        (sum(frames) OVER sweep)::BIGINT AS held_frames, (sum(bytes) OVER sweep)::BIGINT AS held_bytes,
        row_number() OVER sweep AS place
    FROM steps WINDOW sweep AS (
        PARTITION BY instance ORDER BY begins, moment, frames, bytes ROWS UNBOUNDED PRECEDING
    )
), swept AS (
    SELECT instance, begins,
        max(greatest(held_frames, held_frames - frames)) AS peak_frames,
        max(greatest(held_bytes, held_bytes - bytes)) AS peak_bytes,
        max(greatest(
            held_bytes + $overhead * held_frames, held_bytes - bytes + $overhead * (held_frames - frames)
        )) AS peak_charge,
        quantile_disc(held_frames, 0.99) FILTER (is_entry) AS p99_frames,
        quantile_disc(held_bytes, 0.99) FILTER (is_entry) AS p99_bytes,
        arg_max(held_frames, place) AS after_frames, arg_max(held_bytes, place) AS after_bytes
    FROM running GROUP BY instance, begins
), followed AS (
    SELECT *, lead(begins) OVER (PARTITION BY instance ORDER BY begins) AS following FROM swept
), windows AS (
    SELECT instance, begins, peak_frames, peak_bytes, peak_charge, p99_frames, p99_bytes FROM followed
    UNION ALL
    SELECT instance, unnest(range(begins + $window_seconds * 1000000, following, $window_seconds * 1000000)),
        after_frames, after_bytes, after_bytes + $overhead * after_frames, NULL, NULL
    FROM followed WHERE after_frames > 0 AND following IS NOT NULL
)
SELECT instance, make_timestamptz(begins) AS window_start, $window_seconds::INTEGER AS window_seconds,
    peak_frames, peak_bytes, p99_frames, p99_bytes,
    greatest(1048576, ceil(peak_charge * 1.25 / 1048576)::BIGINT * 1048576) AS recommended_bytes
FROM windows
"""

DIALOGS = """
WITH transmissions AS (
    SELECT conversation_id, from_target, from_service, to_service, sequence_number, fragment_number, message_id,
        any_value(bytes) AS bytes, bool_or(outcome = 'resent') AS is_resend,
        bool_or(outcome = 'duplicate') AS is_double, bool_or(outcome = 'dropped') AS is_dropped,
        min(entered_at) AS first_at,
        max(left_at) FILTER (outcome <> 'acknowledged') AS last_at,
        min(entered_at) FILTER (outcome IN ('sent', 'resent', 'acknowledged')) AS queued,
        min(left_at) FILTER (outcome IN ('sent', 'resent')) AS sent,
        min(left_at) FILTER (outcome = 'delivered') AS delivered,
        min(left_at) FILTER (outcome = 'acknowledged') AS acknowledged,
        max(instance) FILTER (outcome IN ('sent', 'resent')) AS sender,
        max(instance) FILTER (outcome = 'delivered') AS receiver
    FROM visits WHERE kind = 'message' GROUP BY ALL
), places AS (
    SELECT conversation_id, from_target, from_service, to_service, sequence_number, fragment_number,
        count(*) AS transmissions, count(*) FILTER (is_resend) AS resends, count(*) FILTER (is_double) AS duplicates,
        count(*) FILTER (is_dropped) AS drops, sum(bytes) AS bytes, min(first_at) AS first_at, max(last_at) AS last_at,
        epoch_us(min(delivered)) - epoch_us(min(queued)) AS delivery,
        epoch_us(min(acknowledged)) - epoch_us(min(sent)) AS round_trip,
        epoch_us(min(acknowledged)) - epoch_us(min(delivered)) AS confirmation,
        arg_max(sender, sent) AS sender, arg_max(receiver, delivered) AS receiver,
        min(sent) AS sent, min(delivered) AS delivered
    FROM transmissions GROUP BY ALL
), ends AS (
    SELECT conversation_id, from_target, least(min(delivery), min(confirmation)) AS least_us,
        arg_max(sender, sent) AS sender, arg_max(receiver, delivered) AS receiver
    FROM places GROUP BY conversation_id, from_target
), apart AS (
    SELECT conversation_id, from_target,
        coalesce(sender <> receiver AND min(least_us) OVER pair < -10000, false) AS is_apart
    FROM ends WINDOW pair AS (PARTITION BY least(sender, receiver), greatest(sender, receiver))
)
SELECT conversation_id, from_target, from_service, to_service, count(DISTINCT sequence_number) AS messages,
    count(*) AS fragments, sum(transmissions)::BIGINT AS transmissions, sum(resends)::BIGINT AS resends,
    sum(duplicates)::BIGINT AS duplicates, sum(drops)::BIGINT AS drops, sum(bytes)::BIGINT AS bytes,
    min(first_at) AS first_at, max(last_at) AS last_at,
    CASE WHEN min(delivery) >= 0 AND NOT any_value(is_apart) THEN quantile_disc(delivery, 0.5) END AS delivery_p50_us,
    CASE WHEN min(delivery) >= 0 AND NOT any_value(is_apart) THEN quantile_disc(delivery, 0.95) END AS delivery_p95_us,
    CASE WHEN min(delivery) >= 0 AND NOT any_value(is_apart) THEN quantile_disc(delivery, 0.99) END AS delivery_p99_us,
    quantile_disc(round_trip, 0.5) AS round_trip_p50_us, quantile_disc(round_trip, 0.95) AS round_trip_p95_us,
    quantile_disc(round_trip, 0.99) AS round_trip_p99_us,
    max(sequence_number) - min(sequence_number) + 1 - count(DISTINCT sequence_number) AS gaps
FROM places JOIN apart USING (conversation_id, from_target)
GROUP BY conversation_id, from_target, from_service, to_service
"""

ROUTES = """
WITH passed AS (
    SELECT instance, route_table, route, conversation_id, from_target, sequence_number, fragment_number, message_id,
        outcome, reason, bytes, hash(route_table, route, adjacent_out) AS way,
        epoch_us(left_at) AS went, epoch_us(left_at) - epoch_us(entered_at) AS residence,
        (epoch_us(left_at) // ($window_seconds * 1000000)) * ($window_seconds * 1000000) AS window_us
    FROM visits WHERE outcome <> 'acknowledged'
), leaving AS (
    SELECT * FROM passed WHERE outcome IN ('sent', 'resent', 'forwarded')
), wavering AS (
    SELECT instance, conversation_id, from_target FROM leaving
    GROUP BY instance, conversation_id, from_target HAVING min(way) <> max(way)
), moved AS (
    SELECT instance, route_table, route, window_us, count(*) AS failovers
    FROM (
        SELECT *, lag(way) OVER (
            PARTITION BY instance, conversation_id, from_target
            ORDER BY went, sequence_number, fragment_number, message_id
        ) AS way_before
        FROM leaving SEMI JOIN wavering USING (instance, conversation_id, from_target)
    ) WHERE way_before <> way GROUP BY ALL
), drops AS (
    SELECT instance, route_table, route, window_us,
        map_from_entries(list((reason, frames) ORDER BY reason)) AS by_reason
    FROM (
        SELECT instance, route_table, route, window_us, reason, count(*) AS frames
        FROM passed WHERE outcome = 'dropped' GROUP BY ALL
    ) GROUP BY ALL
), counted AS (
    SELECT instance, route_table, route, window_us, count(*) AS frames, sum(bytes)::BIGINT AS bytes,
        quantile_disc(residence, [0.5, 0.95, 0.99, 0.999]) AS residence,
        count(*) FILTER (outcome = 'dropped') AS drops
    FROM passed GROUP BY ALL
)
SELECT counted.instance, counted.route_table, counted.route, make_timestamptz(counted.window_us) AS window_start,
    $window_seconds::INTEGER AS window_seconds, frames, bytes, residence[1] AS residence_p50_us,
    residence[2] AS residence_p95_us, residence[3] AS residence_p99_us, residence[4] AS residence_p999_us,
    drops, by_reason AS drops_by_reason, coalesce(failovers, 0) AS failovers
FROM counted
LEFT JOIN drops ON counted.instance = drops.instance AND counted.window_us = drops.window_us
    AND counted.route IS NOT DISTINCT FROM drops.route AND counted.route_table IS NOT DISTINCT FROM drops.route_table
LEFT JOIN moved ON counted.instance = moved.instance AND counted.window_us = moved.window_us
    AND counted.route IS NOT DISTINCT FROM moved.route AND counted.route_table IS NOT DISTINCT FROM moved.route_table
"""
