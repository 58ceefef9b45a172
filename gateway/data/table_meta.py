"""What an uploaded table's meta may be changed to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.data.upload import meta_rule, text_rule
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.errors import Invalid, shorten

NAMED = ("label_name", "match_id_name")
READ_AS = ("delimiter", "encoding")


@dataclass(frozen=True)
class Edit:
    """A change of a table's meta; what is None stays, and a column's name that is empty goes."""

    description: str | None = None
    label_name: str | None = None
    match_id_name: str | None = None
    extra: Mapping[str, Any] | None = None
    """free keys, merged with those that are there; a value None deletes one"""

    def of(self, dataset: Dataset) -> Dataset:
        """Return a dataset as it is after the change. Raises `Invalid` with every problem."""
        given = {key: getattr(self, key) for key in NAMED}
        named = {key: dataset.meta.get(key, "") if name is None else name for key, name in given.items()}
        free = {**free_meta(dataset), **(self.extra or {})}
        free = {key: value for key, value in free.items() if value is not None}
        description = dataset.description if self.description is None else self.description
        checks = [("description", text_rule(description), description), ("meta", meta_rule(free), free)]
        for key, value in (self.extra or {}).items():
            if key in (*NAMED, *READ_AS):
                rule = "must stay" if key in READ_AS else f"must be given as {key}, not in meta"
                checks.append((f"meta.{key}", rule, value))
        columns = [name for name in dataset.columns if name != dataset.sid]
        for key, name in given.items():
            if name and name not in columns:
                rule = f"must name a column of the table; they are {shorten(', '.join(columns), 1000)}"
                checks.append((key, rule, name))
        if named["label_name"] and named["label_name"] == named["match_id_name"]:
            checks.append(("label_name", "must not be the column of match_id_name", named["label_name"]))
        match_id = named["match_id_name"]
        if (
            match_id
            and match_id != dataset.meta.get("match_id_name")
            and dataset.partitions > 1
            and not dataset.in_place
        ):
            rule = f"must stay: the {dataset.partitions} partitions are divided by it; upload the table again"
            checks.append(("match_id_name", rule, match_id))
        if wrong := [Problem(path, rule, got) for path, rule, got in checks if rule]:
            raise Invalid(wrong)
        kept = {key: dataset.meta[key] for key in READ_AS if key in dataset.meta}
        types = dict(zip(dataset.columns, dataset.types, strict=True)) | ({match_id: "string"} if match_id else {})
        return replace(
            dataset,
            description=description,
            meta={**free, **kept, **{key: name for key, name in named.items() if name}},
            types=tuple(types.values()),
        )


def free_meta(dataset: Dataset) -> dict[str, Any]:
    """Return the keys of a table's meta that mean nothing here."""
    return {key: value for key, value in dataset.meta.items() if key not in (*NAMED, *READ_AS)}
