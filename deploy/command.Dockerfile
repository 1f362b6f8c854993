# The `rolloutpool` command, for people and scripts: what looks at a pool, submits to it and cancels. It has neither a
# tokenizer library nor a web framework, so `up`, `mock-trainer` and `check-tokenizer` are not for this image.
# Build from the repository's root: docker build -f deploy/command.Dockerfile .
FROM python:3.11-slim-bookworm AS build
ARG VENV=/opt/rolloutpool
WORKDIR /build
COPY requirements.lock ./
COPY deploy/slice_lock.py deploy/
COPY common/pyproject.toml common/
COPY trainer/pyproject.toml trainer/
RUN python deploy/slice_lock.py uv hatchling > tools.txt && \
    python deploy/slice_lock.py rolloutpool-trainer > pins.txt
RUN python -m venv tools && tools/bin/pip install --quiet --require-hashes -r tools.txt
RUN python -m venv --without-pip "$VENV" && \
    tools/bin/uv pip install --quiet --compile-bytecode --python "$VENV/bin/python" --no-deps --require-hashes -r pins.txt
COPY common/src common/src
COPY trainer/src trainer/src
RUN tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels ./common ./trainer && \
    tools/bin/uv pip install --quiet --compile-bytecode --python "$VENV/bin/python" --no-deps --offline wheels/*.whl

FROM python:3.11-slim-bookworm
ARG VENV=/opt/rolloutpool
COPY --from=build $VENV $VENV
ENV PATH=$VENV/bin:$PATH
ARG VERSION=0.3.0
# Which commit this is, for metrics and `docker inspect`: --build-arg COMMIT="$(git rev-parse HEAD)"
ARG COMMIT=unknown
LABEL org.opencontainers.image.version=$VERSION
LABEL org.opencontainers.image.revision=$COMMIT
ENV ROLLOUTPOOL_COMMIT=$COMMIT
USER 10001:10001
ENTRYPOINT ["rolloutpool"]
CMD ["--help"]
