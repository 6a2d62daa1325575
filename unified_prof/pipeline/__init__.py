"""Complete jobs: convert recordings or run workloads, and write the reports."""
