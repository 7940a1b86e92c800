"""What the parts of an ALTER TABLE do to the columns of a table, and how the table is stored after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema_changes import Step
from dblog_core.sources.mysql.ddl import column_forms
from dblog_core.sources.mysql.ddl.alter_tokens import BeyondGrammar
from dblog_core.sources.mysql.ddl.column_definitions import Definition, constant_in_old_rows
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm, TableForm


@dataclass(frozen=True, slots=True)
class Reading:
    """What an ALTER TABLE does. `keeps_values`: it is proven that each row has the values that it had; `after`: how the
    table is stored then, as far as it is known (None: nothing is)."""

    step: Step
    keeps_values: bool
    after: TableForm | None


@dataclass(slots=True)
class AlteredColumns:
    """What the parts of a statement do to columns (`Step`), and to their forms.

    `before`, `strict`, `plain`: as in `alter_table.read` and `column_forms.keeps_values`; `forms`: of columns that the
    statement defines, by their new names in lower case; `charset`: of columns that name none, where the statement
    changes it; `without_charset`: columns of text that it defines without one; `computed`: added columns that the
    server may compute from others; `rebuilds`: it computes such columns again; `is_unsure`: values of no column in
    particular may be others.
    """

    before: TableForm | None
    strict: bool
    plain: bool
    renamed: dict[str, str] = field(default_factory=dict)
    nulls: list[str] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    revalued: list[str] = field(default_factory=list)
    forms: dict[str, ColumnForm | None] = field(default_factory=dict)
    charset: str | None = None
    without_charset: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    rebuilds: bool = False
    is_unsure: bool = False

    def form(self, name: str) -> ColumnForm | None:
        """How a column was stored before the statement; None: nobody knows."""
        return None if self.before is None else self.before.columns.get(name.lower())

    def redefine(self, old: str, new: str, definition: Definition) -> bool:
        """Notes a new definition of a column; whether its values are proven to be the same."""
        before = self.form(old)
        after = self._define(new, definition)
        if after != before:
            self.recompute()
        return column_forms.keeps_values(before, after, strict=self.strict, plain=self.plain)

    def convert(self, charset: str) -> None:
        """Notes that all columns of text get another character set."""
        self.recompute()
        self.charset = charset
        if self.before is None or None in self.before.columns.values():
            self.is_unsure = True
            return
        for name, form in self.before.columns.items():
            if form is not None and form.type in column_forms.WITH_CHARSET:
                if not column_forms.keeps_text(form.charset, charset):
                    self.revalued.append(name)
                if not column_forms.is_same_charset(form.charset, charset):
                    self.forms[name] = None  # its type may be a longer one

    def recompute(self) -> None:
        """The server computes its generated columns again, with the settings of this session."""
        self.rebuilds = True

    def conclude(self) -> Reading:
        """What all parts do together."""
        computed = sorted(self.before.computed) if self.before is not None and self.rebuilds else []
        self.revalued += [name for name in computed if name not in self.revalued]
        if self.charset is not None and self.without_charset:  # which of the two character sets they get is not certain
            self.is_unsure = True
            self.forms |= dict.fromkeys(self.without_charset)
        if self.rebuilds and self.before is None:
            self.is_unsure = True
        step = Step(
            self.renamed,
            tuple(self.nulls),
            self.constants,
            tuple(self.unknown),
            tuple(self.dropped),
            tuple(self.revalued),
        )
        return Reading(step, keeps_values=not self.is_unsure and not self.revalued, after=self._form_of_table())

    def _define(self, name: str, definition: Definition) -> ColumnForm | None:
        form = definition.form("" if self.before is None else self.before.charset)
        self.forms[name.lower()] = form
        if definition.type in column_forms.WITH_CHARSET and not definition.charset:
            self.without_charset.append(name.lower())
        return form

    def _form_of_table(self) -> TableForm | None:
        if self.before is None:
            return None
        new_names = {old.lower(): new.lower() for old, new in self.renamed.items()}
        dropped = {name.lower() for name in self.dropped}
        stay = {name: form for name, form in self.before.columns.items() if name not in dropped}
        columns = {new_names.get(name, name): form for name, form in stay.items()} | self.forms
        computed = {new_names.get(name, name) for name in self.before.computed - dropped} | set(self.computed)
        return TableForm(columns, self.before.charset if self.charset is None else self.charset, frozenset(computed))

    def rename(self, old: str, new: str) -> None:
        """Notes a renaming. Raises BeyondGrammar for a column that is renamed twice."""
        # What two renamings of one column make of it is not certain.
        if old.lower() in {name.lower() for name in self.renamed}:
            raise BeyondGrammar
        self.renamed[old] = new

    def add(self, name: str, definition: Definition | None) -> None:
        """`definition`: None where it says nothing."""
        if definition is None:
            self.forms[name.lower()] = None
            self.computed.append(name.lower())  # it may be
        else:
            self._define(name, definition)
        if definition is not None and definition.holds_null:
            self.nulls.append(name)
        elif (
            definition is not None
            and (constant := constant_in_old_rows(definition)) is not None
            and name not in self.constants
        ):
            self.constants[name] = constant
        else:
            self.unknown.append(name)
