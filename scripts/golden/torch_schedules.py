"""Compare pipeline schedules with those of torch.distributed.pipelining.

    python scripts/golden/torch_schedules.py write
        writes tests/pipeline/torch/*.csv: small schedules as torch itself writes them.
    python scripts/golden/torch_schedules.py compare --program build/release/stagewright
        writes torch's schedules over a grid of ranks, microbatches and virtual stages, both with and without
        messages, lets the program read, check and simulate each, and compares the actions; then lets torch
        read, validate, lower and simulate what the program writes under each of its names.

Needs torch, as requirements.txt has it; no process group is made.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import tempfile
import types

from torch.distributed.pipelining import schedules as pipelining

ROOT = pathlib.Path(__file__).resolve().parents[2]

# torch's class; our name of the same order, or None; virtual stages
KINDS = {
    "gpipe": (pipelining.ScheduleGPipe, "gpipe", [1]),
    "1f1b": (pipelining.Schedule1F1B, "1f1b", [1]),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, "interleaved", [1, 2, 3, 4]),
    "zero-bubble": (pipelining.ScheduleInterleavedZeroBubble, "zb1p", [1, 2, 3]),
    "zbv": (pipelining.ScheduleZBVZeroBubble, "zbv", [2]),
    "looped-bfs": (pipelining.ScheduleLoopedBFS, None, [1, 2, 4]),
    "dualpipev": (pipelining.ScheduleDualPipeV, "dualpipev", [2]),
}
OURS = {
    "gpipe": [1], "1f1b": [1], "interleaved": [1, 2, 3], "looped_bfs": [1, 2, 3], "zb_h1": [1],
    "zb_h2": [1], "zb1p": [1, 2, 3], "zbv": [2], "vhalf": [2], "vmin": [2], "dualpipev": [2],
}  # fmt: skip


def stages(p, v):
    """What a schedule asks of its stages, without models or processes."""
    one = {"num_stages": p * v, "group_size": p, "group_rank": 0, "submod": None}
    return [types.SimpleNamespace(**one) for _ in range(v)]


def torch_order(kind, p, m, v):
    """Rank -> actions, None for idle; None when torch refuses the numbers."""
    made_of = KINDS[kind][0]
    single = issubclass(made_of, pipelining.PipelineScheduleSingle)
    try:
        return made_of(stages(p, v)[0] if single else stages(p, v), m).pipeline_order
    except ValueError:
        return None


def runtime(p, m, v):
    return pipelining._PipelineScheduleRuntime(stages(p, v), m)


def torch_write(path, order, p, m, v, comms):
    schedule = runtime(p, m, v)
    schedule.pipeline_order = order
    if comms:
        schedule._prepare_schedule_with_comms({r: list(a) for r, a in order.items()})
    schedule._dump_csv(path, format="compute_comms" if comms else "compute_only")


def torch_accepts(order, p, m, v):
    """Schedule1F1B of torch 2.9.1 tells an order that it does not run: the last rank forwards come one too late."""
    try:
        pipelining._validate_schedule(order, p, p * v, m)
    except (AssertionError, KeyError):
        return False
    return True


def torch_simulate(schedule):
    """Runs the lowered lists against each other; torch's simulator knows no UNSHARD."""
    sharding = (pipelining.UNSHARD, pipelining.RESHARD)
    order = {
        rank: [a for a in actions if a.computation_type not in sharding]
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }
    rank_of_stage = schedule.stage_index_to_group_rank
    pipelining._simulate_comms_compute(order, lambda s: rank_of_stage[s], len(rank_of_stage))


def flat(actions):
    """Texts of the compute actions, a pair as its parts."""
    out = []
    for action in actions:
        if action is not None:
            out += [str(part) for part in action.sub_actions or [action]]
    return out


def program(args, path):
    """Runs `schedule`, returns (exit status, stdout or the errors)."""
    done = subprocess.run([path, "schedule", *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def write():
    folder = ROOT / "tests" / "pipeline" / "torch"
    folder.mkdir(exist_ok=True)
    small = [("gpipe", 2, 3, 1), ("1f1b", 4, 6, 1), ("interleaved", 2, 4, 2), ("interleaved", 3, 5, 2),
             ("zero-bubble", 3, 6, 1), ("zero-bubble", 2, 4, 2), ("zbv", 2, 4, 2), ("zbv", 4, 3, 2),
             ("looped-bfs", 2, 4, 2), ("dualpipev", 3, 7, 2)]  # fmt: skip
    for kind, p, m, v in small:
        name = f"{kind}-p{p}-m{m}-v{v}"
        order = torch_order(kind, p, m, v)
        torch_write(folder / f"{name}.csv", order, p, m, v, False)
        if torch_accepts(order, p, m, v):
            torch_write(folder / f"{name}-comms.csv", order, p, m, v, True)


def compare_theirs(folder, binary):
    print("kind          refused by torch  invalid for both  files  same actions  same order as ours")
    wrong = 0
    for kind, (_, ours, virtual) in KINDS.items():
        refused = invalid = files = same = alike = 0
        for p in [1, 2, 3, 4, 8]:
            for m in [1, 2, 3, 4, 6, 8, 12, 16, 19]:
                for v in virtual:
                    order = torch_order(kind, p, m, v)
                    if order is None:
                        refused += 1
                        continue
                    if not torch_accepts(order, p, m, v):
                        path = folder / f"{kind}-{p}-{m}-{v}.csv"
                        torch_write(path, order, p, m, v, False)
                        status, _ = program(["--schedule", path], binary)
                        invalid += status == 2
                        wrong += status != 2
                        continue
                    for comms in [False, True]:
                        path = folder / f"{kind}-{p}-{m}-{v}-{int(comms)}.csv"
                        torch_write(path, order, p, m, v, comms)
                        files += 1
                        status, text = program(["--schedule", path, "--format", "json"], binary)
                        if status != 0:
                            print(f"  {path.name}: {text.strip()}")
                            wrong += 1
                            continue
                        got = [rank["actions"] for rank in json.loads(text)["ranks"]]
                        equal = got == [flat(order[r]) for r in range(p)]
                        same += equal
                        wrong += not equal
                    if ours:
                        args = ["--schedule", ours, "--pp", p, "--microbatches", m, "--virtual", v]
                        status, text = program([*args, "--format", "csv"], binary)
                        rows = [line.split(",") for line in text.split("\n")]
                        alike += status == 0 and rows[:p] == [flat(order[r]) for r in range(p)]
        print(f"{kind:12} {refused:17} {invalid:17} {files:6} {same:13} {alike:9} of {files // 2}")
    return wrong


def compare_ours(folder, binary):
    print("name          written  read back and run by torch")
    wrong = 0
    for name, virtual in OURS.items():
        n = fine = 0
        for p in [1, 2, 3, 4, 8]:
            for m in [1, 2, 3, 5, 8, 13, 16]:
                for v in virtual:
                    if name == "dualpipev" and m < 2 * p:
                        continue
                    args = ["--schedule", name, "--pp", p, "--microbatches", m, "--virtual", v]
                    status, text = program([*args, "--format", "csv"], binary)
                    assert status == 0, text
                    path = folder / f"{name}-{p}-{m}-{v}.csv"
                    path.write_text(text, encoding="ascii")
                    n += 1
                    schedule = runtime(p, m, v)
                    try:
                        schedule._load_csv(path)
                        torch_simulate(schedule)
                        rows = list(csv.reader(path.open(newline="")))
                        fine += rows == [flat(schedule.pipeline_order[r]) for r in range(p)]
                    except (AssertionError, ValueError, RuntimeError) as error:
                        print(f"  {path.name}: {str(error).splitlines()[0]}")
        wrong += n - fine
        print(f"{name:12} {n:8} {fine:27}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    commands.add_parser("compare").add_argument("--program", required=True)
    args = parser.parse_args()
    if args.command == "write":
        return write()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        wrong = compare_theirs(folder, args.program) + compare_ours(folder, args.program)
    print(f"{wrong} differences")
    return wrong != 0


if __name__ == "__main__":
    raise SystemExit(main())
