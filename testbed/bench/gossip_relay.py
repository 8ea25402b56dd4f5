"""A bad network between replicas on one machine: a UDP relay in front of each gossip socket, as `chaos` has one.

Others reach a replica at its relay's address (`--gossip-advertise`). Each sender has a socket of its own towards the
replica, on which answers return; its address shows which replica it is. The relays run in one process of their own, so
that no other work of a script delays packets. Needs no root. Standard library only.
"""
import contextlib
import multiprocessing
import random
import select
import signal
import socket

PACKET_BYTES = 65_536
BUFFER_BYTES = 1 << 20      # of each socket: as much as the socket of a paused replica would hold
SENDERS_MAX = 64            # sockets towards replicas; packets of further senders are dropped
REPLY_S = 5                 # of the process, to a command


class Relays:
    """One relay for each of `names`: `public[name]` is where others reach it. A context manager."""

    def __init__(self, names, seed):
        sockets = {name: bound() for name in names}
        self.public = {name: "{}:{}".format(*s.getsockname()) for name, s in sockets.items()}
        self.commands, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=serve, args=(sockets, theirs, seed), daemon=True)
        self.process.start()
        theirs.close()
        for s in sockets.values():
            s.close()

    def found(self, name, gossip):
        """Sets the replica's gossip socket, once it is started."""
        self.tell("found", name, gossip)

    def cut(self, *pairs):
        """From now on no packet passes between these pairs of names, and between all others every one."""
        self.tell("cut", pairs)

    def lose(self, share):
        """From now on this share of all packets is lost at random, in addition to the cut ones."""
        self.tell("lose", share)

    def tell(self, *command):
        self.commands.send(command)
        if not self.commands.poll(REPLY_S):
            raise OSError("the relays do not answer")
        self.commands.recv()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()
        self.commands.close()


def bound():
    """A UDP socket on a free port."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made


def serve(public, commands, seed):
    """The process: relays packets until the other end of `commands` is closed."""
    # The script handles Ctrl-C and SIGTERM, and then ends this process.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    rng = random.Random(seed)
    targets, places, towards = {}, {}, {}
    network = {"cut": set(), "lost": 0.0}
    poll = select.epoll()
    # For each file: its socket, and a function that handles a packet and its sender.
    handlers = {}

    def passes(one, other):
        return frozenset((one, other)) not in network["cut"] and rng.random() >= network["lost"]

    def send(by, packet, to):
        # A full buffer or a closed port: the packet is lost, as on a real network.
        with contextlib.suppress(OSError):
            by.sendto(packet, to)

    def arrived(name):
        def handle(packet, sender):
            if name not in targets:
                return
            inner = towards.get((name, sender))
            if inner is None:
                if len(towards) >= SENDERS_MAX:
                    return
                inner = towards[name, sender] = bound()
                watch(inner, answered(name, sender))
            if passes(places.get(sender), name):
                send(inner, packet, targets[name])
        return handle

    def answered(name, sender):
        def handle(packet, _):
            if passes(name, places.get(sender)):
                send(public[name], packet, sender)
        return handle

    def watch(of, handle):
        handlers[of.fileno()] = (of, handle)
        poll.register(of.fileno(), select.EPOLLIN)

    def obey(what, *values):
        if what == "found":
            name, gossip = values
            host, port = gossip.rsplit(":", 1)
            targets[name] = (host, int(port))
            places[targets[name]] = name
        elif what == "cut":
            network["cut"] = {frozenset(pair) for pair in values[0]}
        else:
            network["lost"] = values[0]

    for name, of in public.items():
        watch(of, arrived(name))
    poll.register(commands.fileno(), select.EPOLLIN)
    while True:
        for file, _ in poll.poll():
            if file == commands.fileno():
                try:
                    obey(*commands.recv())
                    commands.send(None)
                except (EOFError, BrokenPipeError):
                    return
                continue
            of, handle = handlers[file]
            with contextlib.suppress(OSError):
                handle(*of.recvfrom(PACKET_BYTES))
