#!/usr/bin/env python3
"""Makes the Grafana board of a cluster, grapevine-board.json, from the rows below. Standard library only.

    board.py                   write grapevine-board.json beside this file
    board.py --check           fail unless the file is what would be written
    board.py --expressions     one JSON line for each query: row, panel, expression

A panel is `(title, unit, queries, more)`; a query is `(legend, expression)`. `$job`, `$instance` and `$model` are the
variables of the board. `quiet` marks a panel that is empty while nothing is wrong. Tests run every expression in a real Prometheus beside a
real cluster (tests/cluster/monitoring/), and compare names with the registry (node/src/all_metrics.rs).
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("grapevine-board.json")
OF = 'job=~"$job",instance=~"$instance"'
OF_MODEL = f'{OF},model=~"$model"'


def rate(name, labels=OF, by=""):
    """Events a second, summed over what `by` does not name."""
    return f"sum by ({by}) (rate(grapevine_{name}{{{labels}}}[$__rate_interval]))"


def gauge(name, labels=OF, by="instance", how="sum"):
    return f"{how} by ({by}) (grapevine_{name}{{{labels}}})"


def quantiles(name, labels=OF, by=""):
    """Three quantiles of a histogram."""
    groups = ", ".join(filter(None, ["le", by]))
    buckets = f"sum by ({groups}) (rate(grapevine_{name}_bucket{{{labels}}}[$__rate_interval]))"
    legend = " {{" + by + "}}" if by else ""
    return [(f"p{q}{legend}", f"histogram_quantile(0.{q}, {buckets})") for q in ("50", "95", "99")]


def ratio(part, whole):
    return f"{part} / {whole}"


ROWS = [
    ("Now", [
        ("Replicas ready", "none", [("ready", f"sum(grapevine_ready{{{OF}}})")], "stat"),
        ("Replicas live, as the one sees that sees fewest", "none", [("live", f"min(grapevine_replicas_live{{{OF}}})")], "stat"),
        ("Workers by verdict", "none", [("{{verdict}}", gauge("workers_by_verdict", by="verdict", how="max"))], "stat"),
        ("Requests in progress", "none", [("requests", f"sum(grapevine_requests_active{{{OF}}})")], "stat"),
        ("5xx", "percentunit", [("5xx", ratio(
            f'(sum(rate(grapevine_requests_total{{{OF},status="5xx"}}[$__rate_interval])) or vector(0))',
            f"sum(rate(grapevine_requests_total{{{OF}}}[$__rate_interval]))"))], "stat"),
        ("Alarms that fire", "none", [("alarms", 'count(ALERTS{job=~"$job",alertstate="firing"}) or vector(0)')], "stat"),
    ]),
    ("Requests", [
        ("Requests by outcome", "reqps", [("{{outcome}}", rate("requests_total", OF_MODEL, "outcome"))], ""),
        ("Requests by status", "reqps", [("{{status}}", rate("requests_total", OF_MODEL, "status"))], ""),
        ("Requests by model", "reqps", [("{{model}}", rate("requests_total", OF_MODEL, "model"))], ""),
        ("Requests by endpoint", "reqps", [("{{endpoint}}", rate("requests_total", OF_MODEL, "endpoint"))], ""),
        ("Tokens of prompts and answers", "none", [
            ("prompt {{model}}", rate("prompt_tokens_total", OF_MODEL, "model")),
            ("answer {{model}}, {{source}}", rate("completion_tokens_total", OF_MODEL, "model, source"))], ""),
        ("Errors of the router's own", "reqps", [("{{code}}", rate("errors_total", OF, "code"))], ""),
    ]),
    ("Time", [
        ("First token", "s", quantiles("first_token_seconds", OF_MODEL), ""),
        ("First token by model, p95", "s", quantiles("first_token_seconds", OF_MODEL, "model")[1:2], ""),
        ("Between tokens", "s", quantiles("inter_token_seconds", OF_MODEL), ""),
        ("For each token, mean of a stream", "s", quantiles("time_per_output_token_seconds", OF_MODEL), ""),
        ("Whole request", "s", quantiles("request_seconds", OF_MODEL), ""),
        ("Added by the router before the worker, queues left out", "s", quantiles("preparation_seconds"), ""),
        ("One decision", "s", quantiles("decision_seconds"), ""),
        ("Longest pause of a stream", "s", quantiles("stream_pause_seconds", OF_MODEL), ""),
    ]),
    ("Queues", [
        ("Requests that wait", "none", [("for {{queue}}, {{class}}", gauge("queue_length", by="queue, class"))], ""),
        ("Wait of those that waited", "s", quantiles("queue_wait_seconds", by="queue"), ""),
        ("Turned away", "reqps", [("{{result}}", rate("admissions_total", f'{OF},result!="admitted"', "result"))], ""),
        ("Requests of a model", "none", [("{{model}}, {{state}}", gauge("model_requests", OF_MODEL, "model, state"))], ""),
    ]),
    ("Workers", [
        ("In flight, from all replicas", "none", [("{{worker}}", gauge("worker_in_flight_cluster", by="worker", how="max"))], ""),
        ("First token by worker, p95", "s", quantiles("worker_first_token_seconds", by="worker")[1:2], ""),
        ("Why a worker was chosen", "reqps", [("{{reason}}", rate("placements_total", OF, "reason"))], ""),
        ("Spilled from the home", "percentunit", [("spilled", ratio(
            f'sum(rate(grapevine_placements_total{{{OF},reason=~"spill.*"}}[$__rate_interval]))',
            f"sum(rate(grapevine_placements_total{{{OF}}}[$__rate_interval]))"))], ""),
        ("Stalled, doubted, or with an open breaker", "none", [
            ("stalled {{worker}}", f"max by (worker) (grapevine_worker_stalled{{{OF}}}) > 0"),
            ("doubted {{worker}}", f"max by (worker) (grapevine_worker_doubted{{{OF}}}) > 0"),
            ("breaker {{worker}}", f"max by (worker) (grapevine_worker_breaker{{{OF}}}) > 0")], "quiet"),
        ("Verdicts that changed", "none", [("{{worker}} {{to}}", rate("worker_health_changes_total", OF, "worker, to"))], ""),
        ("Tokens by worker", "none", [("{{worker}}", rate("completion_tokens_total", OF_MODEL, "worker"))], ""),
    ]),
    ("Caches of the workers", [
        ("Hit rate: cached of all prompt tokens", "percentunit", [
            ("cached", ratio(rate("cached_tokens_total", OF_MODEL, "model"), rate("prompt_tokens_total", OF_MODEL, "model"))),
        ], ""),
        ("Expected against cached tokens", "none", [
            ("expected", rate("expected_tokens_total", OF_MODEL)), ("cached", rate("cached_tokens_total", OF_MODEL))], ""),
        ("KV events: engines by what is known", "none", [("{{state}}", gauge("kv_engines", by="state", how="max"))], ""),
        ("KV events: what placement went by", "reqps", [("{{result}}", rate("kv_decisions_total", OF, "result"))], ""),
        ("KV events: gaps, faults", "none", [
            ("gaps", rate("kv_event_gaps_total")), ("{{reason}}", rate("kv_event_faults_total", OF, "reason"))], ""),
        ("Warm-ups", "none", [("{{result}}", rate("warm_ups_total", OF, "result"))], ""),
    ]),
    ("Retries, failovers, transfers", [
        ("Attempts by result", "reqps", [("{{result}}", rate("attempts_total", OF, "result"))], ""),
        ("Retries of requests", "percentunit", [("retries", ratio(
            rate("retries_total"), f"sum(rate(grapevine_requests_total{{{OF}}}[$__rate_interval]))"))], ""),
        ("Streams that broke off", "reqps", [("{{outcome}}", rate(
            "requests_total", f'{OF_MODEL},outcome=~"worker_.*|out_of_time|shut_down|incomplete"', "outcome"))], ""),
        ("Streams that moved to another worker, or why not", "reqps", [("{{result}}", rate("failovers_total", OF, "result"))], ""),
        ("Prefill and decode apart: ways", "reqps", [("{{reason}}", rate("split_requests_total", OF, "reason"))], ""),
        ("Prefill and decode apart: transfers that failed", "reqps", [("{{result}}", rate("transfer_failures_total", OF, "result"))], ""),
        ("Requests that end workers", "reqps", [("{{result}}", rate("queries_of_death_total", OF, "result"))], ""),
    ]),
    ("Agreement", [
        ("Same worker as a peer", "percentunit", [("{{instance}}", gauge("agreement_ratio", how="min"))], ""),
        ("Comparisons by result", "none", [("{{result}}", rate("agreement_samples_total", OF, "result"))], ""),
        ("Cost of disagreement, a sample", "s", [("{{instance}}", ratio(
            rate("agreement_cost_seconds_total", OF, "instance"),
            rate("agreement_samples_total", f'{OF},result!="unanswered"', "instance")))], ""),
        ("Different ring digests", "none", [("rings", f'count(count_values("digest", grapevine_ring_digest{{{OF}}}))')], ""),
        ("Replicas live and agreeing", "none", [
            ("live, seen by {{instance}}", gauge("replicas_live")),
            ("agreeing with {{instance}}", gauge("replicas_agreeing")),
            ("not heard by {{instance}}", gauge("replicas_unheard"))], ""),
        ("Registries and settings that differ", "none", [
            ("registries, {{instance}}", gauge("gossip_registry_differing")),
            ("settings, {{instance}}", gauge("settings_differing"))], ""),
        ("Gossip", "Bps", [("{{plane}} {{direction}}", rate("gossip_bytes_total", OF, "plane, direction"))], ""),
        ("Gossip dropped and refused", "none", [
            ("dropped: {{reason}}", rate("gossip_dropped_total", OF, "reason")),
            ("refused: {{reason}}", rate("gossip_refused_total", OF, "reason"))], ""),
    ]),
    ("Sources of workers", [
        ("Seconds since a source was seen", "s", [("{{source}} {{instance}}", gauge("discovery_age_seconds", by="source, instance", how="max"))], ""),
        ("Workers of a source", "none", [("{{source}} {{state}}", gauge("discovery_workers", by="source, state", how="max"))], ""),
        ("What was written for a source", "none", [("{{source}} {{action}}", rate("discovery_writes_total", OF, "source, action"))], ""),
        ("Leases", "none", [("{{result}}", rate("lease_renewals_total", OF, "result"))], ""),
    ]),
    ("Certificates and keys", [
        ("Until a certificate ends", "s", [
            ("replica {{instance}}", f"grapevine_gossip_certificate_expiry_seconds{{{OF}}} - time()"),
            ("authority {{instance}}", f"grapevine_gossip_authority_expiry_seconds{{{OF}}} - time()"),
            ("{{files}} {{instance}}", f"grapevine_tls_certificate_expires_seconds{{{OF}}} - time()")], ""),
        ("Files that were read again", "none", [
            ("certificates {{result}}", rate("tls_reloads_total", OF, "result")),
            ("keys {{result}}", rate("keys_loads_total", OF, "result")),
            ("configuration {{result}}", rate("config_reloads_total", OF, "result"))], ""),
        ("Requests without a good key", "reqps", [("{{reason}}", rate("key_refusals_total", OF, "reason"))], ""),
        ("Admin requests that were refused", "reqps", [("{{reason}}", rate("admin_refusals_total", OF, "reason"))], ""),
    ]),
    ("Tenants", [
        ("Requests of a tenant", "none", [("{{tenant}}", gauge("tenant_requests", by="tenant"))], ""),
        ("Turned away", "reqps", [("{{tenant}}, {{reason}}", rate("tenant_refusals_total", OF, "tenant, reason"))], ""),
    ]),
    ("The process", [
        ("Processors in use", "none", [("{{instance}}", f"rate(process_cpu_seconds_total{{{OF}}}[$__rate_interval])")], ""),
        ("Memory", "bytes", [
            ("resident {{instance}}", f"process_resident_memory_bytes{{{OF}}}"),
            ("in use {{instance}}", gauge("memory_live_bytes"))], ""),
        ("Lateness of timers", "percentunit", [("{{instance}}", rate("timer_lag_seconds_total", OF, "instance"))], ""),
        ("Open file descriptors", "percentunit", [("{{instance}}", f"process_open_fds{{{OF}}} / process_max_fds{{{OF}}}")], ""),
        ("Log lines dropped", "none", [("{{instance}}", rate("log_lines_dropped_total", OF, "instance"))], ""),
        ("Limits that were reached", "none", [("{{limit}}", rate("limits_reached_total", OF, "limit"))], ""),
        ("Releases", "none", [("{{version}} {{revision}}", f"count by (version, revision) (grapevine_build_info{{{OF}}})")], ""),
        ("Up since", "dateTimeAsIso", [("{{instance}}", f"process_start_time_seconds{{{OF}}} * 1000")], "stat"),
    ]),
]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ACROSS, WIDE, HIGH = 24, 8, 7


def panel(number, place, title, unit, queries, more):
    kind = "stat" if more == "stat" else "timeseries"
    custom = {"fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    options = {
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "auto"},
        "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    }
    return {
        "id": number, "type": kind, "title": title, "datasource": SOURCE, "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom if kind == "timeseries" else {}}, "overrides": []},
        "options": options[kind],
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (legend, expression) in enumerate(queries)
        ],
    }


def variable(name, query, label):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query, "query": query,
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def board():
    panels, number, top = [], 0, 0
    for title, row in ROWS:
        number += 1
        panels.append({"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": ACROSS, "h": 1}})
        top += 1
        wide, high = (ACROSS // len(row), 4) if title == "Now" else (WIDE, HIGH)
        for at, (name, unit, queries, more) in enumerate(row):
            number += 1
            across = ACROSS // wide
            place = {"x": at % across * wide, "y": top + at // across * high, "w": wide, "h": high}
            panels.append(panel(number, place, name, unit, queries, more))
        top += -(-len(row) // (ACROSS // wide)) * high
    return {
        "title": "Grapevine", "uid": "grapevine", "tags": ["grapevine", "vllm"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "label_values(grapevine_ready, job)", "Cluster"),
            variable("instance", 'label_values(grapevine_ready{job=~"$job"}, instance)', "Replica"),
            variable("model", 'label_values(grapevine_requests_total{job=~"$job"}, model)', "Model"),
        ]},
        "panels": panels,
    }


def main():
    if sys.argv[1:] == ["--expressions"]:
        for title, row in ROWS:
            for name, _, queries, more in row:
                for _, expression in queries:
                    print(json.dumps({"row": title, "panel": name, "quiet": more == "quiet", "expression": expression}))
        return
    text = json.dumps(board(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not FILE.exists() or FILE.read_text() != text:
            sys.exit(f"{FILE.name} is not what board.py writes: run packaging/monitoring/board.py")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    FILE.write_text(text)


main()
