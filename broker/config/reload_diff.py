"""
The changes that a reload makes, key by key: which settings differ, and when each difference takes effect.

Two sets of settings are compared as values, so a value that is written in another way and means the same is not a
difference. Settings that only a restart applies keep their old values: `in_force` gives the settings that hold after a
reload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.config.consistency import contradictions
from broker.config.load import DEFAULT, all_keys, origin_of
from broker.config.schema import Reload, Setting
from broker.config.settings import Settings
from broker.config.toml import KeyPath, dotted, render_value
from broker.errors import SettingError

_JOURNAL: KeyPath = ("journal", "directory")


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One setting with another value.

    Attributes:
        effect: When it takes effect.
        before: As one writes it in TOML; empty for a new database.
        after: Likewise; empty for a removed database.
        place: file:line:column of the new value, or the variable that holds it; empty where it is the default.
    """

    path: KeyPath
    effect: Reload
    before: str
    after: str
    place: str = ""

    @property
    def key(self) -> str:
        """As an error names it."""
        return dotted(self.path)


def differences(old: Settings, new: Settings) -> list[Difference]:
    """Return the differences, in the order of the reference, then databases that only one of the settings has."""
    found = []
    for setting, path in all_keys(name for name in old.databases if name in new.databases):
        before, after = old.value_at(path), new.value_at(path)
        if before != after:
            effect = Reload.RESTART if _needs_restart(setting, path, old, new) else setting.reload
            place = "" if origin_of(new, path) == DEFAULT else origin_of(new, path)
            found.append(Difference(path, effect, _written(setting, before), _written(setting, after), place))
    for name in [*old.databases, *new.databases]:
        path = ("databases", name)
        if name not in old.databases:
            found.append(Difference(path, Reload.RESTART, "", "a new database", origin_of(new, path)))
        elif name not in new.databases:
            found.append(Difference(path, Reload.RESTART, "a database", ""))
    return found


def _written(setting: Setting, value: object) -> str:
    written = setting.form.write(value)
    return render_value("" if written is None else written)


def _needs_restart(setting: Setting, path: KeyPath, old: Settings, new: Settings) -> bool:
    """Whether more than the key itself changes, so that only a restart applies it."""
    if path == _JOURNAL and (old.journal.directory is None) != (new.journal.directory is None):
        return True  # forwarding is set up with a journal or without
    if setting.form.kind.base == "state" and old.instance.state_dir != new.instance.state_dir:
        return True
    mirroring = (*path[:2], "mirroring")
    return str(path[-1]).startswith("role_") and old.value_at(mirroring) != new.value_at(mirroring)


def in_force(old: Settings, new: Settings, changed: Iterable[Difference]) -> Settings:
    """The new settings with the old values of what only a restart applies, and the places of the new ones."""
    settings = new
    for one in changed:
        if one.effect is Reload.RESTART:
            settings = _with_old(settings, one.path, old)
    return settings


def _with_old(settings: Settings, path: KeyPath, old: Settings) -> Settings:
    """The same settings with the old value at a path."""
    if path[0] != "databases":
        section, key = str(path[0]), str(path[1])
        part = getattr(settings, section).replace(**{key: old.value_at(path)})
        return settings.replace(**{section: part})
    name = str(path[1])
    databases = dict(settings.databases)
    if len(path) > 2:
        databases[name] = databases[name].replace(**{str(path[2]): old.value_at(path)})
    elif name in old.databases:
        databases[name] = old.databases[name]
    else:
        del databases[name]
    return settings.replace(databases=databases)


def mixed_contradictions(settings: Settings, changed: Iterable[Difference]) -> list[SettingError]:
    """What is wrong with settings in force when half of a change waits for a restart."""
    waiting = [one.key for one in changed if one.effect is Reload.RESTART]
    if not waiting:
        return []
    errors = settings.report(contradictions(settings))
    for error in errors:
        error.hint = f"restart the instance: until then {', '.join(waiting)} has its old value"
    return errors
