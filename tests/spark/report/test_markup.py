"""Markup that nothing in it can break."""

from __future__ import annotations

from broker.config.units import Quantity
from broker.pipeline.report.markup import Column, Html, details, element, escape, join, name, table


def test_text_is_escaped_in_children_and_attributes() -> None:
    hostile = "\"><script>'&"

    made = element("p", hostile, title=hostile)

    assert '<p title="&quot;&gt;&lt;script&gt;&#x27;&amp;">&quot;&gt;&lt;script&gt;&#x27;&amp;</p>' == made


def test_markup_is_left_as_it_is() -> None:
    assert "<p><b>x</b></p>" == element("p", element("b", "x"))


def test_attributes_are_spelt_as_html_has_them() -> None:
    made = element("g", class_="a", aria_label="b", viewBox="0 0 1 1", x=1.25, y=2.0, hidden=None, open=True, off=False)

    assert '<g class="a" aria-label="b" viewBox="0 0 1 1" x="1.2" y="2" open></g>' == made


def test_void_elements_are_not_closed() -> None:
    assert '<meta charset="utf-8">' == element("meta", charset="utf-8")


def test_a_rounded_quantity_shows_its_exact_figure() -> None:
    assert '<p><span title="1,500">1.5 k</span>2</p>' == element("p", Quantity("1.5 k", "1,500"), Quantity("2"))


def test_characters_that_no_page_may_have_are_replaced() -> None:
    assert "a\N{REPLACEMENT CHARACTER}b\tc\n" == escape("a\x00b\tc\n")


def test_names_of_others_are_apart_from_the_text_around_them() -> None:
    assert '<bdi class="name">a</bdi>' == name("a")
    assert '<span class="faint">unknown</span>' == name(None)


def test_a_table_has_headings_for_columns_and_rows() -> None:
    made = table([Column("who"), Column("many", is_number=True, is_aside=True)], [("<a>", "1")], caption="c")

    assert '<th scope="col">who</th><th class="number aside" scope="col">many</th>' in made
    assert '<th scope="row">&lt;a&gt;</th><td class="number aside">1</td>' in made
    assert '<caption class="unseen">c</caption>' in made


def test_details_are_closed_until_asked_for() -> None:
    assert "<details><summary>more</summary>x</details>" == details("more", "x")


def test_what_is_not_there_leaves_nothing() -> None:
    assert Html() == join([None, ""])
