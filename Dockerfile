# One image for web, worker and beat; docker-compose.yml says which.
FROM python:3.11-slim-bookworm

# bubblewrap, libseccomp2: sandboxes. Node: MCP servers that start with npx. git: those that read repositories.
# The others: what scripts expect, as in docs/sandbox.Dockerfile; sandboxes show the worker's /usr.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      bubblewrap ca-certificates curl git jq libseccomp2 nodejs npm openssh-client procps python3 \
      python3-venv ripgrep tini \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.lock pyproject.toml README.md ./
RUN python -m venv .venv \
 && .venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .
RUN .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation -e . \
 && .venv/bin/python -m compileall -q umpteenth secrets_vault servers jobs

ENV PATH=/app/.venv/bin:$PATH \
    UMPTEENTH_DATA_DIR=/data \
    UMPTEENTH_APP__BIND=0.0.0.0:8080
RUN install -d -m 700 /data
VOLUME /data
EXPOSE 8080
# tini takes away what sandboxes leave behind, and passes signals on.
ENTRYPOINT ["tini", "--", "umpteenth"]
CMD ["up"]
