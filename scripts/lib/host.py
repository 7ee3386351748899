#!/usr/bin/env python3
"""What machine a record was made on: processor, cores, instruction sets that matter here, and a short hash of these.

usage: host.py [--line]      JSON, or one line
"""
import hashlib
import json
import os
import platform
import sys

# Names as Linux gives them, those that a kernel is chosen by.
FLAGS = ["avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve"]


def describe():
    fields = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    host = {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "arch": platform.machine(),
        "cores": os.cpu_count(),
        "isa": [f for f in FLAGS if f in flags],
        "os": f"{platform.system()} {platform.release()}",
    }
    # The kernel's version doesn't make another machine.
    key = json.dumps([host["cpu"], host["arch"], host["cores"], host["isa"]])
    host["hash"] = hashlib.sha256(key.encode()).hexdigest()[:12]
    return host


if __name__ == "__main__":
    found = describe()
    if "--line" in sys.argv:
        print(f"{found['cpu']}, {found['cores']} cores, {' '.join(found['isa'])}, {found['os']}")
    else:
        print(json.dumps(found, indent=2))
