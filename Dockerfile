# The server with the embedded model, from this clone: docker build -t fusevlm .
#   docker run --rm -p 8000:8000 -e FUSEVLM_SERVE_TOKEN=$(openssl rand -hex 24) fusevlm
# A run folder or a fit: -v $PWD/runs:/runs:ro … fusevlm --model /runs/own-vlm
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim
COPY --from=build /dist /dist
COPY constraints.txt /constraints.txt
# --build-arg PIP_ARGS='--extra-index-url …' names an index of PyTorch's CPU builds, as in the README
ARG PIP_ARGS=""
RUN pip install --no-cache-dir $PIP_ARGS -c /constraints.txt \
      "$(ls /dist/fusevlm-*.whl)[server]" \
    && rm -r /dist \
    && useradd --create-home fusevlm
USER fusevlm
WORKDIR /home/fusevlm
ENV OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"
STOPSIGNAL SIGTERM
ENTRYPOINT ["fusevlm", "serve", "--host", "0.0.0.0", "--port", "8000"]
