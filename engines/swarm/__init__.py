"""The engine for a Docker Swarm."""

from engines.swarm.engine import SwarmEngine as SwarmEngine
from engines.swarm.tasks import SwarmOptions as SwarmOptions
