# One worker process and its parent, which starts it again and reports how it ended. To scale, run more containers, one
# per core. The image has no web framework and no tokenizers: mount tokenizers, or have the worker fetch them into HF_HOME
# (HF_HUB_OFFLINE=1 forbids that).
# Build from the repository's root: docker build -f deploy/worker.Dockerfile .
FROM python:3.11-slim-bookworm AS build
ARG VENV=/opt/rolloutpool
WORKDIR /build
COPY requirements.lock ./
COPY deploy/slice_lock.py deploy/
COPY common/pyproject.toml common/
COPY worker/pyproject.toml worker/
RUN python deploy/slice_lock.py uv hatchling > tools.txt && \
    python deploy/slice_lock.py 'rolloutpool-worker[otel]' > pins.txt
RUN python -m venv tools && tools/bin/pip install --quiet --require-hashes -r tools.txt
RUN python -m venv --without-pip "$VENV" && \
    tools/bin/uv pip install --quiet --compile-bytecode --python "$VENV/bin/python" --no-deps --require-hashes -r pins.txt
COPY common/src common/src
COPY worker/src worker/src
RUN tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels ./common ./worker && \
    tools/bin/uv pip install --quiet --compile-bytecode --python "$VENV/bin/python" --no-deps --offline wheels/*.whl
RUN mkdir huggingface

FROM python:3.11-slim-bookworm
ARG VENV=/opt/rolloutpool
COPY --from=build $VENV $VENV
# A volume that is mounted here takes the owner of this folder, so that the worker can write to it.
COPY --from=build --chown=10001:10001 /build/huggingface /var/cache/huggingface
ENV PATH=$VENV/bin:$PATH
ENV HF_HOME=/var/cache/huggingface
# Plug-ins that are mounted here can be imported (docs/tools-and-environments.md); nothing is there otherwise.
ENV PYTHONPATH=/opt/plugins
ENV ROLLOUTPOOL_LOG_FORMAT=json
ARG VERSION=0.3.0
# Which commit this is, for metrics and `docker inspect`: --build-arg COMMIT="$(git rev-parse HEAD)"
ARG COMMIT=unknown
LABEL org.opencontainers.image.version=$VERSION
LABEL org.opencontainers.image.revision=$COMMIT
ENV ROLLOUTPOOL_COMMIT=$COMMIT
USER 10001:10001
CMD ["python", "-m", "rolloutpool_worker", "--processes", "1"]
