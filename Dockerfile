# microp in a container. Its two commands are those of README.md:
#
#   docker build -t microp .
#   docker run --rm --shm-size=1g -v "$PWD/outputs:/microp/outputs" microp make demo
#   docker run --rm --shm-size=1g microp make test
#
# For GPUs give another base, and the index that pytorch.org names for the driver of your machine:
#
#   docker build -t microp-gpu --build-arg BASE=nvidia/cuda:12.6.3-base-ubuntu24.04 \
#       --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm --shm-size=1g --gpus all microp-gpu make demo
ARG BASE=python:3.11-slim
FROM ${BASE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends make gcc libc6-dev git \
    && (command -v python3 || apt-get install -y --no-install-recommends python3-dev python3-venv) \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /microp
COPY LICENSE Makefile README.md pyproject.toml Dockerfile ./
COPY .editable .editable
COPY microp microp
COPY conf conf
COPY sweeps sweeps
COPY analysis analysis
COPY tests tests

ARG TORCH_INDEX=
ENV PIP_EXTRA_INDEX_URL=${TORCH_INDEX}
RUN make .venv/ready

CMD ["make", "demo"]
