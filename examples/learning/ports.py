"""The trainer's ports, tried before anything else: a run that learns of a taken port late has wasted minutes."""

import socket


def refuse_taken_ports(host: str, base_port: int, count: int) -> None:
    """Ends the program with a message if one of the trainer's ports cannot be listened on.

    Args:
        host: Where the trainer listens.
        base_port: The first port.
        count: How many ports, one after the other.

    Raises:
        SystemExit: It says which port, why, and what to do.
    """
    ports = range(base_port, base_port + count)
    for port in ports:
        if not 0 < port < 65536:
            raise SystemExit(f"There is no port {port}; the trainer listens on {count} ports from --base-port on.")
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            raise SystemExit(
                f"The workers call the trainer on ports {ports[0]} to {ports[-1]} of {host}, and port {port} cannot be "
                f"listened on: {error.strerror}. End what listens there, or take others: "
                f'make learn ARGS="--base-port 9081"'
            ) from error
