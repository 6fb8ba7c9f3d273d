from broker.config.values import SettingFinding


def test_a_finding_depends_on_no_other_key_unless_it_says_so() -> None:
    found = SettingFinding(("admin", "listen"), "is wrong", "correct it")

    assert () == found.also
