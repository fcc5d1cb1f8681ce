# Rendered from templates/Dockerfile.wheel.j2 by `gfx1100 render vllm-upstream`; edit the template.
# vLLM, the published ROCm wheel, no fork

FROM rocm/dev-ubuntu-24.04:7.2.3 AS packages
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 \
    apt-get update \
    && apt-get install -y --no-install-recommends \
        gcc \
        libc6-dev \
        libdrm-amdgpu1 \
        libdrm2 \
        libelf1t64 \
        libnuma1 \
        python3-dev \
        python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 engine
ENV PATH=/opt/venv/bin:$PATH

FROM packages AS torch-parts
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=cache,id=pip-gfx1100-py3.12,target=/root/.cache/pip \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    --mount=type=bind,source=wheels/pinned,target=/wheelhouse \
    python3 -m venv /opt/venv \
    && pip install --require-hashes --no-deps --find-links /wheelhouse -r /pins/torch/wheels.txt \
    && python3 /pins/torch/prune.py gfx1100 /opt/venv --strip \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm \
    && /usr/bin/python3 /pins/torch/parts.py 4000000000 5 /opt/venv

FROM rocm/dev-ubuntu-24.04:7.2.3-complete AS rocm-parts
RUN --mount=type=bind,source=pins/torch,target=/pins/torch \
    --mount=type=bind,from=packages,source=/,target=/below \
    python3 /pins/torch/prune.py gfx1100 "$(realpath /opt/rocm)" --strip \
    && rm -f /opt/rocm/lib/*.a \
    && /usr/bin/python3 /pins/torch/parts.py 4000000000 5 /opt/rocm /below

FROM packages AS torch
COPY --from=rocm-parts /parts/0/ /
COPY --from=rocm-parts /parts/1/ /
COPY --from=rocm-parts /parts/2/ /
COPY --from=rocm-parts /parts/3/ /
COPY --from=rocm-parts /parts/4/ /
COPY --from=torch-parts /parts/0/ /
COPY --from=torch-parts /parts/1/ /
COPY --from=torch-parts /parts/2/ /
COPY --from=torch-parts /parts/3/ /
COPY --from=torch-parts /parts/4/ /
# the loader's list of libraries has those of the base alone
RUN ldconfig

FROM torch AS runtime
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=cache,id=pip-gfx1100-py3.12,target=/root/.cache/pip \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    --mount=type=bind,source=pins/run,target=/pins/run \
    --mount=type=bind,source=wheels/run,target=/wheelhouse \
    pip install --find-links /wheelhouse -c /pins/run/constraints.txt -r /pins/run/run.txt \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm
# amdsmi before torch, in every process
RUN --mount=type=bind,source=source,target=/source \
    cp /source/gfx1100_amdsmi.* "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/" \
    && pip check
COPY pins/run/gfx1100-entry /usr/local/bin/
ENV FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE \
    HIP_FORCE_DEV_KERNARG=1 \
    SAFETENSORS_FAST_GPU=1
COPY tools/ /
COPY Dockerfile chain/ /usr/share/gfx1100/
LABEL org.opencontainers.image.title="vLLM, the published ROCm wheel, no fork" \
      org.opencontainers.image.revision="..." \
      org.opencontainers.image.version="..." \
      org.opencontainers.image.base.name="rocm/dev-ubuntu-24.04:7.2.3" \
      org.opencontainers.image.base.digest="unresolved" \
      io.gfx1100.stack="vllm-upstream" \
      io.gfx1100.arch="gfx1100" \
      io.gfx1100.lock-sha256="..." \
      io.gfx1100.series-sha256="..."
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8000
ENTRYPOINT ["gfx1100-entry", "vllm", "serve"]
