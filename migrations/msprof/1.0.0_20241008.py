"""The host's number becomes text.

Released in: 2024-10-08. On 2024-09-02 the latencies in PCIE became nanoseconds.
Old rows: the number in decimal. Latencies stay as they are, for nothing in the file says which
unit they have; they are counted.
"""

from unified_prof.migrate import steps

revision = "1.0.0_20241008"
down_revision = "1.0.0_20240711"


def upgrade() -> None:
    steps.change_type("HOST_INFO", "hostUid", "TEXT")
    if steps.has("PCIE", "txNonpostLatencyAvg"):
        steps.anomaly(
            "pcie_latency_unit_unknown",
            steps.count("PCIE"),
            "PCIE.txNonpostLatency*: exporters before 2024-09-02 had another unit than ns",
        )
