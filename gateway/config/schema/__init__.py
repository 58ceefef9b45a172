"""All settings of a node with the checks of their values, a module per area.

`settings` has the whole. Unknown keys are refused.
"""

from gateway.config.schema.settings import PREFIX, Origin, Settings

__all__ = ["PREFIX", "Origin", "Settings"]
