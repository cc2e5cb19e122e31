"""ScienceWorld's simulator: one Java process for all episodes of a process, made reproducible.

Alone, the simulator is not: it keeps objects in sets by their identity, in an order that changes with every reset. It
draws the names of equal objects and what animals do from one random generator without a seed. And it keeps what is
simplified once for all episodes.
"""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from scienceworld.constants import BASEPATH, JAR_PATH

from hgpo_envs.errors import InputError

# equal identities: in order of insertion
_SAME_ORDER: Final = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")


def new_simulator() -> Any:  # noqa: ANN401 (a Java object)
    """Return a simulator for one episode at a time: `scienceworld.runtime.pythonapi.PythonInterface`.

    Raises:
        InputError: There is no Java.
    """
    return _java().jvm.scienceworld.runtime.pythonapi.PythonInterface()


def restore(number: int, simplifications: str | None = None) -> None:
    """Set what the simulators share before one of them is used.

    Args:
        number: The seed of the random generator.
        simplifications: What is simplified, as the simulator wrote after its start; None leaves that to the start.
    """
    random, simplifier = _shared()
    random.setSeed(number)
    if simplifications is not None:
        simplifier.parseSimplificationStr(simplifications.replace(" ", ""))


@cache
def _shared() -> tuple[Any, Any]:
    packages = _java().jvm
    random = getattr(packages.scala.util, "Random$")
    simplifier = getattr(
        packages.main.scala.scienceworld.runtime, "SimplifierProcessor$"
    )
    return getattr(random, "MODULE$"), getattr(simplifier, "MODULE$")


@cache
def _java() -> JavaGateway:
    try:
        port, process = launch_gateway(
            classpath=JAR_PATH,
            javaopts=[*_SAME_ORDER, "-XX:+UseSerialGC"],
            die_on_exit=True,
            create_new_process_group=True,  # Ctrl-C ends Python, which then ends Java
            cwd=BASEPATH,
            return_proc=True,
        )
    except FileNotFoundError as error:
        raise InputError(
            "ScienceWorld needs Java, such as Debian's default-jre-headless; java is not in PATH"
        ) from error
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(auto_field=True, port=port),
        java_process=process,
    )
    atexit.register(gateway.shutdown)
    return gateway
