"""A Slurm of several nodes on this machine, for as long as a test needs it: munged, slurmctld and
slurmd of Debian, with everything they write in one directory. Needs root, as slurmd does."""

import contextlib
import os
import pathlib
import socket
import subprocess
import time

LIMIT = 120


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def configuration(work, host, nodes):
    ports = free_ports(nodes + 1)
    lines = [
        "ClusterName=test", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[0]}",
        "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge",
        # A job that is queued again waits as long as credentials of its first run are good.
        f"AuthInfo=socket={work}/munge/socket,cred_expire=5", "CredType=cred/munge",
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none", "MpiDefault=none", "SwitchType=switch/none",
        f"StateSaveLocation={work}/state", f"SlurmdSpoolDir={work}/spool-%n",
        f"SlurmdPidFile={work}/slurmd-%n.pid", f"SlurmctldPidFile={work}/slurmctld.pid",
        f"SlurmctldLogFile={work}/slurmctld.log", f"SlurmdLogFile={work}/slurmd-%n.log",
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides", "ReturnToService=2", "MinJobAge=600",
        "SchedulerParameters=bf_interval=1,sched_interval=1",
    ]
    lines += [f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node + 1]} "
              "CPUs=1 State=UNKNOWN" for node in range(nodes)]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running(work, nodes):
    """Gives the environment in which sbatch and srun reach it."""
    work = pathlib.Path(work)
    for name in ("munge", "state", *(f"spool-n{node}" for node in range(nodes))):
        (work / name).mkdir()
    key = work / "munge/key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (work / "slurm.conf").write_text(
        configuration(work, socket.gethostname().split(".")[0], nodes))
    environment = {**os.environ, "SLURM_CONF": str(work / "slurm.conf")}
    munge = ["munged", "--foreground", "--force", *(
        f"--{what}={work}/munge/{name}" for what, name in
        (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"),
         ("seed-file", "seed")))]
    daemons = [munge, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", f"n{n}"] for n in range(nodes))]
    processes = []
    with open(work / "daemons.log", "wb") as log:
        try:
            for daemon in daemons:
                processes.append(subprocess.Popen(daemon, env=environment, stdout=log, stderr=log,
                                                  stdin=subprocess.DEVNULL))
                if daemon is munge:
                    wait_for(lambda: (work / "munge/socket").exists(), "munged")
            wait_for(lambda: idle_nodes(environment) == nodes, "nodes")
            yield environment
        except BaseException:
            print((work / "daemons.log").read_text(errors="replace")[-4000:])
            raise
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(timeout=LIMIT)


def idle_nodes(environment):
    done = subprocess.run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return len(done.stdout.split()) if done.returncode == 0 else 0


def wait_for(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not in {LIMIT} s")
        time.sleep(0.2)


def states(environment, job):
    """{array index, or 0: state}, of a job or an array."""
    text = subprocess.run(["scontrol", "-o", "show", "job", str(job)], env=environment, check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in text.splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        found[facts.get("ArrayTaskId", "0")] = facts["JobState"]
    return found
