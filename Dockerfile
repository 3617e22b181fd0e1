# The service in a container. Stages: deps (packages) -> export (ONNX graphs) -> run.
#
#   docker build -t self-attention-service:cpu .                         the default, and the last stage
#   docker build -t self-attention-service:cuda --target cuda .          for a GPU
#   docker build -t self-attention-service:loadtest --target loadtest .  Locust alone: no torch, no service
#
# All versions come from constraints.txt. Its `torch==2.13.0` means two builds: where TORCH_INDEX lists 2.13.0+cpu, pip
# takes that one, which is smaller; without the index, PyPI's build for CUDA. So cpu asks the index and cuda does not.
#
# BASE needs Python 3.11 or later with pip and venv. It is both built in and run on, so a digest may be given here.
ARG BASE=python:3.11-slim

FROM ${BASE} AS base
ENV PATH=/app/bin:/opt/attention/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Some libraries ask for the user's name and home; /tmp is the only place where anything may be written. /app is made
# here, by root: a WORKDIR that is not there yet may be given to the user, as buildah does.
RUN groupadd --gid 10001 attention \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin attention \
    && mkdir /app


# pip is the base image's and installs into environments that have none. pyproject.toml alone, with empty packages,
# stands for the project: a change of code does not install torch again.
FROM base AS build
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN touch README.md && mkdir service models loadtest \
    && python3 -m venv --without-pip /opt/attention/venv

FROM build AS deps
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/attention/venv install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt '.[tracing]' \
    && pip --python /opt/attention/venv uninstall --yes self-attention-service

FROM build AS deps-cuda
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/attention/venv install -c constraints.txt '.[cuda,tracing]' \
    && pip --python /opt/attention/venv uninstall --yes self-attention-service

# What the load test imports; the service's own packages are not needed to send it requests.
FROM build AS deps-loadtest
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/attention/venv install -c constraints.txt locust numpy orjson

# The code lies in a folder of its own, so that a new version is a small layer over the packages.
FROM build AS app
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/attention/venv install --no-deps --target /app .


# The graphs are the same for both builds of torch. The command also compares the backends: if they disagree, no image.
FROM deps AS export
COPY --from=app /app /app
ENV ATTENTION_ARTIFACTS=/opt/attention/artifacts \
    ATTENTION_DEVICE=cpu
RUN attention export


# Everything under /app and /opt/attention belongs to root: the service reads it and cannot change it.
FROM base AS run
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="self-attention-service" \
      org.opencontainers.image.description="Self-attention, served: token embeddings in, attention weights and outputs out." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV ATTENTION_ARTIFACTS=/opt/attention/artifacts
WORKDIR /app
USER 10001:10001
# HTTP, and gRPC where ATTENTION_GRPC_PORT=8001 is set.
EXPOSE 8000
EXPOSE 8001
# The proxy variables of the environment must not send a question to oneself elsewhere, hence the empty ProxyHandler.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/healthz/ready', timeout=4)"]
# The service drains on SIGTERM, 31 s at most by default: give it 40 (docker stop --time 40).
STOPSIGNAL SIGTERM
ENTRYPOINT ["attention"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]


FROM base AS loadtest
COPY --from=deps-loadtest /opt/attention/venv /opt/attention/venv
COPY --from=app /app/loadtest /app/loadtest
WORKDIR /app
USER 10001:10001
EXPOSE 8089
ENTRYPOINT ["locust", "-f", "/app/loadtest/locustfile.py"]
CMD ["--host", "http://attention:8000"]


# Needs the NVIDIA container toolkit on the host; the driver's libraries come from there, NVML among them (utility).
FROM run AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=deps-cuda /opt/attention/venv /opt/attention/venv
COPY --from=export /opt/attention/artifacts /opt/attention/artifacts
COPY --from=app /app /app


FROM run AS cpu
COPY --from=deps /opt/attention/venv /opt/attention/venv
COPY --from=export /opt/attention/artifacts /opt/attention/artifacts
COPY --from=app /app /app
