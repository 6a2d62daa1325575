# Reading and CI: everything of uprof that needs no device. Measuring belongs into an image with
# torch and the vendor's libraries, where `pip install unified-prof` adds uprof.
#   docker run --rm -v "$PWD:/work" ghcr.io/unified-prof/uprof report RUN
FROM python:3.13.1-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/uprof
COPY constraints.txt pyproject.toml README.md LICENSE NOTICE ./
COPY schemas schemas
COPY migrations migrations
COPY examples examples
COPY action action
COPY unified_prof unified_prof
RUN /opt/uprof/bin/pip install --no-cache-dir --disable-pip-version-check \
        -c constraints.txt '.[trace,zstd,parquet,postgres]'

FROM python:3.13.1-slim-bookworm
LABEL org.opencontainers.image.title="uprof" \
      org.opencontainers.image.source="https://github.com/unified-prof/uprof" \
      org.opencontainers.image.licenses="Apache-2.0"
# `uprof gate --until-sure` measures two checkouts; git says which.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 uprof \
    && install -d -o uprof /work
COPY --from=build /opt/uprof /opt/uprof
ENV PATH=/opt/uprof/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /work
ENTRYPOINT ["uprof"]
CMD ["--help"]
