"""The report of a record of scripts/bench-report: tables on the terminal, BENCHMARKS.md, README's section, charts.

Everything here is computed from the record, so a report can be written again without measuring.
"""
import statistics

PEER = "llama.cpp"
OURS, SECOND, MAPPED, GREEDY = "selvedge", "selvedge second", "selvedge mapped", "selvedge greedy"
# Place in the charts' list of colours.
COLOURS = {OURS: 0, PEER: 1, SECOND: 2, MAPPED: 3}

# Rows of the table: label, phase, depth or prompt, whose turns, least ratio per model. The number of decoded tokens is
# the record's; the one at depth 0 is 128.
TARGETS = [
    ("prefill 512", "prefill", 512, OURS, {"SmolLM2": 3.0, "Gemma": 5.0, "Qwen": 3.0}),
    ("prefill 512, avx512vnni", "prefill", 512, SECOND, {"SmolLM2": 1.8, "Gemma": 3.5, "Qwen": 1.6}),
    ("decode at depth 0", "decode", 0, OURS, {"SmolLM2": 1.25, "Gemma": 1.6, "Qwen": 1.5}),
    ("decode at depth 2048", "decode", 2048, OURS, {"SmolLM2": 2.0, "Gemma": 1.6, "Qwen": 1.5}),
    ("decode at depth 0, mapped", "decode", 0, MAPPED, {"SmolLM2": 1.25, "Gemma": 1.25, "Qwen": 1.2}),
    ("decode at depth 2048, mapped", "decode", 2048, MAPPED, {"SmolLM2": 1.25, "Gemma": 1.25, "Qwen": 1.2}),
    # No target of its own: what the command gives, sampling and text included, and whatever it need not read.
    ("decode at depth 0, `selvedge bench`", "decode", 0, GREEDY, {}),
]
DECODE_SHARE = 0.85
THREAD_SHARE = 0.85
KERNEL_SHARES = {"gemv": 0.85, "gemm 32": 0.55, "gemm 16": 0.40}
# Storage types whose scales stand for 16 weights.
GROUPS_OF_16 = {"Q2_K", "Q3_K", "Q6_K"}


def median(xs):
    return statistics.median(xs) if xs else None


def most_threads(model):
    return max(model["compare"], key=int)


def series_key(compare, phase, at):
    """`prefill 512`, or `decode N at 2048` with whatever N was measured."""
    for key in compare["series"]:
        words = key.split()
        if words[0] == phase and int(words[-1]) == at:
            return key
    return None


def rates(compare, phase, at, engine):
    key = series_key(compare, phase, at)
    found = compare["series"].get(key, {}).get(engine) if key else None
    return found["tok_s"] if found else []


def pair_ratios(compare, phase, at, engine):
    return [a / b for a, b in zip(rates(compare, phase, at, engine), rates(compare, phase, at, PEER))]


def spread(xs, form="{:.1f}"):
    if not xs:
        return "-"
    return f"{form.format(median(xs))} ({form.format(min(xs))} to {form.format(max(xs))})"


def short_spread(xs):
    return spread(xs, "{:.0f}" if xs and median(xs) >= 100 else "{:.1f}")


def short_name(name):
    """Without the storage type: room in a chart is short."""
    return name.rsplit(" ", 1)[0]


def least(name, targets):
    return next((value for word, value in targets.items() if name.startswith(word)), None)


def points(compare, phase):
    """Prompts or depths that were measured, ascending."""
    return sorted({int(key.split()[-1]) for key in compare["series"] if key.split()[0] == phase})


def page_kind(model):
    """Whether Selvedge's weights lie in huge pages, as its own process says."""
    alone = (model.get("alone") or {}).get(OURS)
    if not alone:
        return "small"
    packed = model["compare"][most_threads(model)]["packed_bytes"]
    return "huge" if median(alone["anon_huge"]) + median(alone["file_huge"]) >= packed / 2 else "small"


def decode_share(model, threads, depth):
    """Bytes a second that decode reads, the bandwidth, and its share; each bound is of the same round as the rate."""
    compare = model["compare"].get(threads)
    limit = (compare or {}).get("bandwidth", {}).get(str(depth))
    got = rates(compare, "decode", depth, OURS) if compare else []
    if not limit or not got:
        return None
    bound = limit[page_kind(model)]
    read = [r * limit["bytes_per_token"] / 1e9 for r in got]
    return median(read), median(bound), median([r / b for r, b in zip(read, bound)])


def prefill_share(model, threads, n, engine):
    """Integer products a second of a prompt, tera-operations, the peak of the engine's instructions, and its share."""
    compare = model["compare"].get(threads)
    got = rates(compare, "prefill", n, engine) if compare else []
    isa = (compare or {}).get("isa", {}).get(engine)
    peaks = {"amx": "amx_tops", "avx512vnni": "vnni_tops"}.get(isa)
    if not got or not peaks or not compare[peaks]:
        return None
    products = 2 * (compare["body_products"] + compare["head_products"] / n)
    tops = [r * products / 1e12 for r in got]
    return median(tops), median(compare[peaks]), median([t / p for t, p in zip(tops, compare[peaks])])


def thread_scaling(model):
    """Gain of decode by the second thread, gain of the bandwidth, and their ratio."""
    one, two = decode_share(model, "1", 0), decode_share(model, "2", 0)
    if not one or not two:
        return None
    return two[0] / one[0], two[1] / one[1], (two[0] / one[0]) / (two[1] / one[1])


# ---------------------------------------------------------------------------------------------------------------------
# Tables: lists of rows of text, the first being the head.


def target_table(record):
    names = list(record["models"])
    rows = [["ratio to the peer", *names]]
    for label, phase, at, engine, wanted in TARGETS:
        cells = []
        for name in names:
            model = record["models"][name]
            found = pair_ratios(model["compare"][most_threads(model)], phase, at, engine)
            bound = least(name, wanted)
            if not found:
                cells.append("not measured")
            elif bound is None:
                cells.append(spread(found, "{:.2f}"))
            else:
                verdict = "reached" if median(found) >= bound else "NOT reached"
                cells.append(f"{spread(found, '{:.2f}')}, {bound:g} {verdict}")
        rows.append([label, *cells])
    return rows


def other_targets(record):
    names = list(record["models"])
    rows = [["against the machine", *names]]
    for depth in (0, 2048):
        shares = [decode_share(m, most_threads(m), depth) for m in record["models"].values()]
        if any(shares):
            rows.append([f"decode at {depth}, share of read bandwidth",
                         *[f"{s[2]:.0%}, {DECODE_SHARE:.0%} {'reached' if s[2] >= DECODE_SHARE else 'NOT reached'}" if s else "-" for s in shares]])
    scaling = [thread_scaling(m) for m in record["models"].values()]
    if any(scaling):
        rows.append(["decode, 2 threads against 1, over the bandwidth's gain",
                     *[f"{s[2]:.2f}, {THREAD_SHARE:g} {'reached' if s[2] >= THREAD_SHARE else 'NOT reached'}" if s else "-" for s in scaling]])
    return rows


def speed_table(model, threads):
    compare = model["compare"][threads]
    used = {engine for engines in compare["series"].values() for engine in engines}
    names = {OURS: f"Selvedge {compare['isa'][OURS]}", SECOND: f"Selvedge {compare['isa'].get(SECOND)}", MAPPED: "Selvedge mapped",
             GREEDY: "`selvedge bench`", PEER: PEER}
    engines = [engine for engine in names if engine in used]
    rows = [["tok/s", *[names[e] for e in engines], "ratio"]]
    for phase in ("prefill", "decode"):
        for at in points(compare, phase):
            cells = [short_spread(rates(compare, phase, at, e)) for e in engines]
            rows.append([series_key(compare, phase, at), *cells, spread(pair_ratios(compare, phase, at, OURS), "{:.2f}")])
    return rows


def mib(xs):
    return f"{median(xs) / 2**20:.0f}" if xs else "-"


def memory_table(record):
    rows = [["", "engine", "open, ms", "first token, ms", "peak anonymous, MiB", "of it in huge pages", "peak mapped, MiB"]]
    for name, model in record["models"].items():
        for engine, found in (model.get("alone") or {}).items():
            rows.append([name, engine, short_spread(found["open_ms"]), short_spread(found.get("first_token_ms")), mib(found["peak_anon"]),
                         mib(found.get("anon_huge")), mib(found["peak_mapped"])])
    return rows


def roofline_tables(record):
    decode = [["decode", "threads", "depth", "MB a token", "GB/s read", "bandwidth, 4 KiB pages", "bandwidth, huge pages", "share"]]
    prefill = [["prefill 512", "threads", "instructions", "TOPS", "peak, TOPS", "share"]]
    for name, model in record["models"].items():
        for threads in sorted(model["compare"], key=int, reverse=True):
            compare = model["compare"][threads]
            for depth in points(compare, "decode"):
                limit, share = compare["bandwidth"].get(str(depth)), decode_share(model, threads, depth)
                if limit and share:
                    decode.append([name, threads, str(depth), f"{limit['bytes_per_token'] / 1e6:.0f}", f"{share[0]:.1f}",
                                   spread(limit["small"]), spread(limit["huge"]), f"{share[2]:.0%} ({page_kind(model)} pages)"])
            for engine in (OURS, SECOND):
                if share := prefill_share(model, threads, 512, engine):
                    prefill.append([name, threads, compare["isa"][engine], f"{share[0]:.2f}", f"{share[1]:.2f}", f"{share[2]:.0%}"])
    return decode, prefill


def kernel_limits(record):
    """Median of what was measured before and after the kernels: bandwidth by threads, peaks of one thread."""
    k = record["kernels"]
    both = [k["before"], k["after"]]
    bandwidth = {int(t): median([limits[t]["huge_gb_s"] for limits in both if limits[t]["huge_gb_s"]]) for t in both[0]}
    peaks = {name: median([limits["1"]["tops"][name] for limits in both if limits["1"]["tops"][name]]) for name in ("vnni", "amx")}
    return bandwidth, peaks


def kernel_tables(record):
    if not record.get("kernels"):
        return []
    bandwidth, peaks = kernel_limits(record)
    found = {}
    for row in record["kernels"]["rows"]:
        found.setdefault((row["kernel"], row["type"]), {})[(row["what"], row["threads"])] = row["per_second"]
    rows = [["kernel", "weights", "1 row, GB/s", "share", "1 row, 2 threads", "share", "512 rows, TOPS", "of VNNI peak", "of AMX peak"]]
    for (kernel, ty), values in found.items():
        one, two, gemm = values.get(("gemv", 1)), values.get(("gemv", 2)), values.get(("gemm", 1))

        def share(value, bound):
            return f"{value / bound:.0%}" if value and bound else "-"

        rows.append([kernel, ty, f"{one / 1e9:.1f}" if one else "-", share(one, (bandwidth.get(1) or 0) * 1e9),
                     f"{two / 1e9:.1f}" if two else "-", share(two, (bandwidth.get(2) or 0) * 1e9),
                     f"{gemm / 1e12:.3f}" if gemm else "-", share(gemm, (peaks["vnni"] or 0) * 1e12),
                     share(gemm, (peaks["amx"] or 0) * 1e12) if "amx" in kernel else "-"])
    return rows


def energy_table(record):
    rows = [["tokens a joule", *list(record["models"])]]
    for engine in (OURS, PEER):
        for phase, at in (("prefill", 512), ("decode", 0)):
            cells = []
            for model in record["models"].values():
                compare = model["compare"][most_threads(model)]
                key = series_key(compare, phase, at)
                found = compare["series"].get(key, {}).get(engine, {}) if key else {}
                cells.append(spread(found.get("tok_per_joule", []), "{:.2f}"))
            rows.append([f"{engine}, {key or phase}", *cells])
    return rows


def of(value, *path):
    for key in path:
        value = value.get(key) if value else None
    return value


def quality_table(record):
    rows = [["quality", *list(record["models"])]]
    wanted = [
        ("allocations per token", "{}", ("hooks", "allocations", "allocations_per_token")),
        ("KL gpl2k, mean", "{:.5f}", ("hooks", "divergence", "kl_mean")),
        ("KL gpl2k, median", "{:.5f}", ("hooks", "divergence", "kl_median")),
        ("KL from the top 32, mean", "{:.5f}", ("quality", "kl_at_least", "mean")),
        ("KL from the top 32, median", "{:.5f}", ("quality", "kl_at_least", "median")),
        ("arg-max agreement", "{:.1%}", ("quality", "argmax_agreement")),
        ("perplexity gpl9k", "{:.3f}", ("quality", "ppl", "selvedge")),
        ("perplexity, reference", "{:.3f}", ("quality", "ppl", "reference")),
    ]
    for label, form, path in wanted:
        cells = [of(m, *path) for m in record["models"].values()]
        if any(c is not None for c in cells):
            rows.append([label, *["not measured" if c is None else form.format(c) for c in cells]])
    for what in ("all ids", "first 64 ids"):
        found = [of(m, "quality", "hashes", what) for m in record["models"].values()]
        if any(found):
            cells = [f"{len(f['runs'])} ways, {'the same' if f['same'] else 'THEY DIFFER'}" if f else "not measured" for f in found]
            rows.append([f"logits of {what}", *cells])
    return rows if len(rows) > 1 else []


# ---------------------------------------------------------------------------------------------------------------------
# Terminal.


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip())
    print()


def host_line(record):
    host = record["host"]
    return f"{host['cpu']}, {host['cores']} cores, {' '.join(host['isa'])}, {host['os']}"


def show(record):
    print(f"host     {host_line(record)}\ncommit   {record['commit']}, {record['date']}, load before {record['load_before']:.1f}")
    print(f"peer     {record['peer_name']}: {' '.join(record['peer']['isa']) if record['peer'] else 'none'}")
    print(f"each     median (smallest to largest) of {record['rounds']} pairs of turns; ratios pair by pair; took {record['minutes']} minutes\n")
    print_table(target_table(record))
    print_table(other_targets(record))
    for name, model in record["models"].items():
        for threads in sorted(model["compare"], key=int, reverse=True):
            print(f"{name}, {threads} thread{'s' * (threads != '1')}")
            print_table(speed_table(model, threads))
    print_table(memory_table(record))
    for rows in (*roofline_tables(record), kernel_tables(record), quality_table(record)):
        if len(rows) > 1:
            print_table(rows)
    for name, model in record["models"].items():
        for what, found in (of(model, "quality", "hashes") or {}).items():
            print(f"{name}, SHA-256 of the logits of {what} ({found['n_ids']}): {'all the same' if found['same'] else 'THEY DIFFER'}")
            for label, value in found["runs"].items():
                print(f"  {label:<22} {value}")


# ---------------------------------------------------------------------------------------------------------------------
# Files.


def markdown(rows):
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row) + " |" for row in rows[1:]]
    return "\n".join(lines) + "\n"


def report(record, notes):
    """The text of BENCHMARKS.md."""
    date, models = record["date"][:10], record["models"]
    first = next(iter(models.values()))
    compare = first["compare"][most_threads(first)]
    parts = ["# Benchmarks\n"]
    parts.append("Written by `scripts/bench-report`; a change by hand is lost at the next run. What a person says on the figures stands in "
                 "`docs/benchmarks-notes.md` and is copied in.\n")
    peer_isa = " ".join(record["peer"]["isa"]) if record["peer"] else "not measured"
    parts.append(
        f"- **Machine**: {host_line(record)}. Load before the run: {record['load_before']:.1f}.\n"
        f"- **Selvedge**: commit `{record['commit']}`, {date}; compiled as it is shipped, instruction sets chosen when it runs. Here: "
        f"`{compare['isa'][OURS]}`" + (f", and `{compare['isa'][SECOND]}` for comparison" if SECOND in compare["isa"] else "") + ".\n"
        f"- **Peer**: {record['peer_name']}, by the crate `llama-cpp-sys-2`, compiled by clang 16 for this processor: {peer_isa}. "
        + ("That AMX is used is checked: the build says so, and the weights lie in its AMX buffer.\n" if "AMX" in record["peer_name"] else "\n") +
        f"- **Turns**: {record['rounds']} pairs (with 1 thread at most 3), one engine after the other on the same token ids, the first of a pair "
        "being the last of the next. Figures are medians (smallest to largest), ratios are taken pair by pair. Both compute the logits "
        "of a prompt's last position and of every decoded token in full, with an f16 cache; nothing is sampled.\n"
        f"- **Time**: {record['minutes']} minutes in all.\n"
    )
    parts.append("## Targets\n\n" + markdown(target_table(record)) + "\n" + markdown(other_targets(record)))
    parts.append("![Ratios to llama.cpp](docs/speed.svg)\n")
    if notes.strip():
        parts.append("## Notes\n\n" + notes.strip() + "\n")
    parts.append("## Speed\n\n![Decode by depth](docs/speed-depth.svg)\n")
    for name, model in models.items():
        for threads in sorted(model["compare"], key=int, reverse=True):
            parts.append(f"### {name}, {threads} thread{'s' * (threads != '1')}\n\n" + markdown(speed_table(model, threads)))
    agreements = [(name, of(m["compare"][most_threads(m)], "agreement")) for name, m in models.items()]
    if any(a for _, a in agreements):
        parts.append("That both do the same work: after the same 512 ids the most probable token is "
                     + "; ".join(f"{'the same' if a['same_best'] else 'another'} on {name} (divergence {a['kl']:.4f})" for name, a in agreements if a)
                     + ".\n")
    parts.append("## Opening and memory\n\nEach engine alone in a process of its own, 2 threads, the file in the page cache, a context of 1024; a prompt of "
                 "512 and 16 tokens. \"First token\" counts from the start of opening. Memory by `/proc/self/status`, every 5 ms.\n\n"
                 + markdown(memory_table(record)))
    decode, prefill = roofline_tables(record)
    parts.append("## Against the machine\n\n![Shares of what the machine allows](docs/roofline.svg)\n\n"
                 "Decode must read every weight and the cache once a token. The bandwidth is measured in every round, beside the engines, on a buffer "
                 "of as many bytes, by as many threads, in plain order, the fastest of several ways of reading; the share is taken with the kind of "
                 "pages that Selvedge's weights lie in. Bytes are those of the file's types: some take more packed.\n\n" + markdown(decode))
    if len(prefill) > 1:
        parts.append("Prefill multiplies every weight with every row (attention isn't counted). The peaks are loops of `vpdpbusd` and `tdpbssd` on "
                     "registers, by as many threads, a multiply-add as two operations.\n\n" + markdown(prefill))
    if kernel_rows := kernel_tables(record):
        bandwidth, peaks = kernel_limits(record)
        parts.append("## Kernels\n\nBy criterion (`tests/bench/benches/kernels.rs`). One row of activations on a matrix of "
                     f"{record['kernels']['bytes'] / 2**20:.0f} MiB, larger than the cache, against the bandwidth measured before and after on as many "
                     "bytes in huge pages (" + ", ".join(f"{t} thread{'s' * (t > 1)} {b:.1f} GB/s" for t, b in sorted(bandwidth.items())) +
                     "); 512 rows (scalar: 16) on 2048 by 2048 with one thread, against the peak of "
                     + ", ".join(f"{name.upper()} {p:.2f} TOPS" for name, p in peaks.items() if p) + ". Asked for: "
                     f"{KERNEL_SHARES['gemv']:.0%} of the bandwidth; {KERNEL_SHARES['gemm 32']:.0%} of the VNNI peak for scales of 32 weights and "
                     f"{KERNEL_SHARES['gemm 16']:.0%} for scales of 16 ({', '.join(sorted(GROUPS_OF_16))}).\n\n" + markdown(kernel_rows))
    if compare["rapl"]:
        parts.append("## Energy\n\nOf all packages, by RAPL.\n\n" + markdown(energy_table(record)))
    else:
        parts.append("## Energy\n\nThis machine doesn't let its energy counters (RAPL) be read: tokens a joule are not measured.\n")
    if rows := quality_table(record):
        parts.append("## Quality\n\nWhat the speed must not cost: divergence from the f32 reference, and the same bits in every way to compute them. "
                     "Hashes are in the record.\n\n" + markdown(rows))
    idle = max(c["idle_cpu"] for m in models.values() for c in m["compare"].values())
    parts.append(
        "## How it is measured, and how to repeat it\n\n"
        "```sh\nscripts/bench-report                  # all of it; the record goes to tests/bench/record\n"
        "scripts/bench-report --quick smollm2  # a look\n"
        "scripts/bench-report --write          # this page again from the record\n"
        "cd tests/bench && cargo bench --no-default-features -- gemv   # kernels alone\n```\n\n"
        "`tests/bench` holds both engines in one process, each on a thread of its own with its own pool: llama.cpp sets up a thread's AMX tiles once "
        "and relies on them for ever, so no other code that uses them may run there. Its threads go on polling after a graph, which would take a "
        "core from whoever measures next; they are put to sleep between turns (`ggml_threadpool_pause`). What the process burns while nobody "
        f"has the turn is measured: at most {idle:.1%} of a core. "
        "Before each measurement an engine computes two tokens, so that its threads are awake and the caches its own. "
        "Opening and memory are measured in processes of their own. "
        "So is the command as it is shipped (`selvedge bench`), with greedy sampling and text"
        + (", and so are mapped weights, by its `--weights mapped`. " if "mapped" in record["weights_options"] else ". ")
        + "llama.cpp is compiled with `-march=native`, Selvedge without, as it is shipped. Figures of different runs are not comparable: the "
        "machine may be shared, and moves by tens of percent.\n"
    )
    return "\n".join(parts)


def readme(record, text):
    """README's text with its section on speed filled in."""
    begin, end = "<!-- speed: begin -->\n", "<!-- speed: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"README.md lacks the marks {begin.strip()} and {end}")
    rows = [["", "", "Selvedge", PEER, "ratio"]]
    for name, model in record["models"].items():
        compare = model["compare"][most_threads(model)]
        for phase, at, engine in (("prefill", 512, OURS), ("decode", 0, OURS), ("decode", 2048, OURS)):
            if found := rates(compare, phase, at, engine):
                ratios = pair_ratios(compare, phase, at, engine)
                rows.append([name, series_key(compare, phase, at), short_spread(found), short_spread(rates(compare, phase, at, PEER)),
                             f"{median(ratios):.2f}" if ratios else "-"])
    first = next(iter(record["models"].values()))
    threads = most_threads(first)
    lines = ["![Times the speed of llama.cpp](docs/speed.svg)\n", markdown(rows)]
    lines.append(f"Tokens a second; {record['host']['cpu']}, {threads} threads, Selvedge with {first['compare'][threads]['isa'][OURS]}, {record['peer_name']}; "
                 f"medians of {record['rounds']} turns each (smallest to largest), taken by turns, {record['date'][:10]}. More, with what the machine "
                 "allows and how to repeat it: [BENCHMARKS.md](BENCHMARKS.md).\n")
    before, rest = text.split(begin, 1)
    return before + begin + "\n".join(lines) + rest[rest.index(end):]


def charts(record):
    """What to draw, for the plot command of the bench crate."""
    foot = f"{record['host']['cpu']}; medians of {record['rounds']} pairs of turns, {record['date'][:10]}"
    found = []
    groups = []
    used = set()
    for name, model in record["models"].items():
        compare = model["compare"][most_threads(model)]
        for phase, at in (("prefill", 512), ("decode", 0), ("decode", 2048)):
            bars = []
            for engine in (OURS, SECOND, MAPPED):
                if ratios := pair_ratios(compare, phase, at, engine):
                    used.add(engine)
                    text = f"{median(ratios):.2f}x, {median(rates(compare, phase, at, engine)):.0f} tok/s"
                    bars.append({"series": COLOURS[engine], "value": median(ratios), "low": min(ratios), "high": max(ratios), "text": text})
            if bars:
                groups.append({"label": f"{short_name(name)}, {series_key(compare, phase, at)}", "bars": bars})
    model = next(iter(record["models"].values()))
    threads = most_threads(model)
    second = model["compare"][threads]["isa"].get(SECOND)
    labels = {OURS: "Selvedge", PEER: f"{record['peer_name']}: the line at 1", SECOND: f"Selvedge, {second}", MAPPED: "Selvedge, weights mapped"}
    found.append({"kind": "bars", "file": "speed.svg", "title": f"Times the speed of {record['peer_name']}, {threads} threads", "foot": foot, "mark": 1.0,
                  "series": [label if engine in used or engine == PEER else "" for engine, label in labels.items()], "groups": groups})
    panels = []
    for name, model in record["models"].items():
        compare = model["compare"][most_threads(model)]
        lines = []
        for engine, label in ((OURS, "Selvedge"), (PEER, PEER)):
            values = [[depth, median(rates(compare, "decode", depth, engine))] for depth in points(compare, "decode") if rates(compare, "decode", depth, engine)]
            if values:
                lines.append({"label": label, "series": COLOURS[engine], "points": values})
        panels.append({"title": name, "lines": lines})
    found.append({"kind": "lines", "file": "speed-depth.svg", "title": f"Decode by depth, tokens a second, {threads} threads", "foot": foot,
                  "x": "tokens in the context", "panels": panels})
    groups = []
    for name, model in record["models"].items():
        threads = most_threads(model)
        for depth in points(model["compare"][threads], "decode"):
            if share := decode_share(model, threads, depth):
                groups.append({"label": f"{short_name(name)}, decode at {depth}", "bars": [{"series": 0, "value": share[2], "low": share[2], "high": share[2],
                               "text": f"{share[2]:.0%}: {share[0]:.1f} of {share[1]:.1f} GB/s"}]})
        for engine in (OURS, SECOND):
            if share := prefill_share(model, threads, 512, engine):
                isa = model["compare"][threads]["isa"][engine]
                groups.append({"label": f"{short_name(name)}, prefill 512, {isa}", "bars": [{"series": 2, "value": share[2], "low": share[2], "high": share[2],
                               "text": f"{share[2]:.0%}: {share[0]:.2f} of {share[1]:.2f} TOPS"}]})
    found.append({"kind": "bars", "file": "roofline.svg", "title": "Share of what the machine allows", "foot": foot, "mark": None,
                  "series": ["decode, of the read bandwidth", "", "prefill, of the integer peak"], "groups": groups})
    return found
