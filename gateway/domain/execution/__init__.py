"""The rules of a node that takes part in a job: `execute` is the way in, the rest are its parts.

`timing`, `commands` and `events` are the words; `records` makes changed copies; `agenda` says what there is to do;
`weighing` decides what becomes of a run; `answers`, `ending` and `owners` take in the other news.
"""
