"""The engine for a Docker Swarm; beside `engines.docker` the only place that uses Docker's client."""

from engines.swarm.engine import SwarmEngine as SwarmEngine
from engines.swarm.tasks import SwarmOptions as SwarmOptions
