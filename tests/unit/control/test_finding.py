from broker.control.finding import Finding


def test_a_finding_depends_on_no_other_key_unless_it_says_so() -> None:
    found = Finding(("admin", "listen"), "is wrong", "correct it")

    assert () == found.also
