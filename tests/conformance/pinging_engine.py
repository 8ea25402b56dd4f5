"""Engines that register as vLLM's do: a DEALER with its own address as identity, one MessagePack map a ping.

    pinging_engine.py ROUTER ENGINE...

An engine is a JSON map, sent as it is. Pings every half second rather than every three, so that a test need not wait.
A line of standard input ends the last engine that still pings; the end of standard input ends all.
"""

import json
import sys
import threading

import msgpack
import zmq


def ping(context, router, engine, ended):
    socket = context.socket(zmq.DEALER)
    socket.setsockopt_string(zmq.IDENTITY, engine["zmq_address"])
    socket.connect(f"tcp://{router}")
    while not ended.is_set():
        socket.send(msgpack.dumps(engine))
        ended.wait(0.5)
    socket.close(linger=0)


def main():
    router, engines = sys.argv[1], [json.loads(engine) for engine in sys.argv[2:]]
    context = zmq.Context()
    running = []
    for engine in engines:
        ended = threading.Event()
        thread = threading.Thread(target=ping, args=(context, router, engine, ended))
        thread.start()
        running.append((thread, ended))
    for _ in sys.stdin:
        thread, ended = running.pop()
        ended.set()
        thread.join()
    for thread, ended in running:
        ended.set()
        thread.join()


main()
