"""Reads files in ranges by many readers at once, as clients of object stores do; prints seconds.

    ranges.py READERS BYTES URL_OR_PATH...

The order of the ranges is the same in every run, and no reader's are neighbours. Every answer must
have all of its bytes.
"""
import os
import queue
import random
import socket
import sys
import threading
import time
import urllib.parse


class Http:
    """A file by its URL, over one connection that is kept."""

    connections = threading.local()

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.address, self.target = (parts.hostname, parts.port), parts.path

    def ask(self, method, headers):
        kept = vars(self.connections)
        if self.address not in kept:
            kept[self.address] = socket.create_connection(self.address)
        connection = kept[self.address]
        connection.sendall(f"{method} {self.target} HTTP/1.1\r\nHost: {self.address[0]}:{self.address[1]}\r\n{headers}\r\n".encode())
        text = b""
        while b"\r\n\r\n" not in text:
            more = connection.recv(4096)
            if not more:
                raise SystemExit(f"ranges: {self.target}: the connection ended")
            text += more
        head, _, rest = text.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in lines[1:])
        return connection, int(lines[0].split()[1]), int(found["content-length"]), rest

    def size(self):
        _, status, length, _ = self.ask("HEAD", "")
        if status != 200:
            raise SystemExit(f"ranges: {self.target}: {status}")
        return length

    def read(self, begin, place):
        connection, status, length, rest = self.ask(
            "GET", f"Range: bytes={begin}-{begin + len(place) - 1}\r\n")
        if status != 206 or length != len(place):
            raise SystemExit(f"ranges: {self.target}: {status}, {length} bytes of {len(place)}")
        place[:len(rest)] = rest
        got = len(rest)
        while got < length:
            more = connection.recv_into(place[got:])
            if not more:
                raise SystemExit(f"ranges: {self.target}: {got} bytes of {length}")
            got += more


class Path:
    def __init__(self, path):
        self.path, self.fd = path, os.open(path, os.O_RDONLY)

    def size(self):
        return os.fstat(self.fd).st_size

    def read(self, begin, place):
        got = 0
        while got < len(place):
            more = os.preadv(self.fd, [place[got:]], begin + got)
            if not more:
                raise SystemExit(f"ranges: {self.path}: {got} bytes of {len(place)}")
            got += more


def main():
    readers, step = int(sys.argv[1]), int(sys.argv[2])
    files = [(Http if "://" in word else Path)(word) for word in sys.argv[3:]]
    wanted = [(file, at, min(step, size - at))
              for file in files for size in [file.size()] for at in range(0, size, step)]
    random.Random(1).shuffle(wanted)
    ranges = queue.SimpleQueue()
    for each in wanted:
        ranges.put(each)
    failed = []

    def read():
        place = memoryview(bytearray(step))
        try:
            while True:
                file, begin, size = ranges.get_nowait()
                file.read(begin, place[:size])
        except queue.Empty:
            pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    print(time.perf_counter() - begin)


main()
