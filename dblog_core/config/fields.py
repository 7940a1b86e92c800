"""What sections of the configuration are made of: strictness, values from the environment, sizes, durations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
)

from dblog_core.config import secret_settings
from dblog_core.model import durations, sizes, table_names

Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _size(value: Any) -> Any:
    return sizes.parse(value) if isinstance(value, str) else value


_SIZE = BeforeValidator(_size)
_SIZE_FORMS = [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\s*\d+\s*[KMGTkmgt]?[Bb]?\s*$"}]
Size = Annotated[int, Field(strict=True), _SIZE, WithJsonSchema({"anyOf": _SIZE_FORMS})]
"""Bytes: a number, or text such as "10G"."""

Duration = Annotated[str, Field(pattern=durations.PATTERN)]
"""A length of time as text, such as "36h": see `durations`."""

TableNameText = Annotated[
    str, Field(pattern=table_names.FORM, description="SCHEMA.TABLE"), AfterValidator(table_names.require_canonical)
]

_FROM_TEXT = {int: int, float: float, bool: {"true": True, "false": False}.__getitem__}


class FromEnvironment(str):
    """Text with a ${ENV} in it: unlike other text it may also stand for a number or a flag."""


class Unset(FromEnvironment):
    """Text whose ${ENV} is not set, where that is allowed: fits everywhere."""


class Withheld(Unset):
    """The same in a section that this process has no need of."""


class Section(BaseModel):
    """What all sections share: nothing unknown is taken, ${ENV} may stand for any value, and no secret is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, secret_settings.redact_setting(value, name or "")

    @field_validator("*", mode="wrap")
    @classmethod
    def _environment(cls, value: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if not isinstance(value, FromEnvironment):
            return inner(value)
        field = cls.model_fields[str(info.field_name)]
        convert: Any = _FROM_TEXT.get(field.annotation, str) if isinstance(field.annotation, type) else str
        if _SIZE in field.metadata:
            convert = sizes.parse
        if isinstance(value, Withheld) and field.annotation is SecretStr:
            return secret_settings.Absent(value)
        if isinstance(value, Unset):
            if convert is not str or field.annotation is SecretStr:
                return field.get_default()
            return str(value)
        try:
            converted = convert(value)
        except (ValueError, KeyError):
            raise ValueError("comes from an environment variable that holds a value of the wrong type") from None
        return inner(converted)
