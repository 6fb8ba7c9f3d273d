# One instance: gateway, endpoint or both. No Spark: that is deploy/spark/Dockerfile.
#
#   docker build --build-arg VERSION=0.1.0 -t broker:0.1.0 .
#
# Where builds have to repeat to the byte, name the base by its digest: --build-arg BASE=debian@sha256:...
# deploy/compose.yaml, deploy/kubernetes and deploy/helm run it; docs/deploying.md tells how.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS builder
# Debian keeps one version of a package in a stable release, the one with the security updates; older ones are gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && python3 -m venv /opt/broker \
    && /opt/broker/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.txt
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE LICENSES.md THIRD-PARTY.md ./
COPY broker broker
# A kernel that cannot be compiled ends the build here.
RUN BROKER_BUILD=compiled /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist . \
    && /opt/broker/bin/pip install --no-deps --no-index /dist/*.whl
# What nothing needs once all is installed goes: pip, and of pyarrow what is for those who compile against it, test it, or
# reach other machines with it. JOURNAL=no leaves it out: no instance of this image keeps a journal then.
ARG JOURNAL=yes
WORKDIR /opt/broker/lib/python3.11/site-packages
RUN rm -rf pyarrow/include pyarrow/tests pyarrow/_flight* pyarrow/libarrow_flight* pyarrow/libarrow_python_flight* \
           pyarrow/_s3fs* pyarrow/libarrow_s3* \
    && if [ "${JOURNAL}" = no ]; then rm -rf pyarrow pyarrow-*.dist-info; fi \
    && /opt/broker/bin/pip uninstall --yes setuptools pip

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=65532 --group=65532 --mode=0700 /var/lib/broker \
    && install --directory --mode=0755 /etc/broker
COPY --from=builder /opt/broker /opt/broker
COPY deploy/sbom.cdx.json /usr/share/broker/sbom.cdx.json
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="broker" \
      org.opencontainers.image.description="A Service-Broker-style message router and forwarder" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="docker.io/library/debian:bookworm-slim"
# Nothing is written but the state directory: the root may be read-only. Commands find the configuration by themselves.
ENV PATH=/opt/broker/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    BROKER_CONFIG=/etc/broker/broker.toml
USER 65532:65532
WORKDIR /var/lib/broker
VOLUME ["/var/lib/broker"]
# Other instances; metrics and health. The admin port, 9422, is off unless the configuration says so.
EXPOSE 4022 9423
STOPSIGNAL SIGTERM
# Does the loop turn. Not readiness: an instance that drains must not be ended for it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["broker", "health", "live"]
ENTRYPOINT ["broker"]
CMD ["serve"]
