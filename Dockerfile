# Image that converts, reads and gates reports. To measure, install uprof in an image with torch and the
# vendor's libraries instead.
#   docker build -t uprof .                    (the image is not published yet)
#   docker run --rm -v "$PWD:/work" uprof report RUN
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
# `uprof gate --until-sure` reads the revisions of both checkouts with git.
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
