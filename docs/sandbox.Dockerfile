# What sandboxes of an engine are made of (docs/sandboxes.md):
#   docker build -t umpteenth-sandbox - < docs/sandbox.Dockerfile
FROM debian:bookworm-slim

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      bash ca-certificates curl git jq nodejs npm openssh-client procps python3 python3-venv ripgrep \
 && rm -rf /var/lib/apt/lists/*
# uv and uvx come from the worker.
