# Rendered from templates/Dockerfile.sglang.j2 by `gfx1100 render sglang`; edit the template.
# SGLang, StevenChenSE fork, gfx1100

FROM rocm/dev-ubuntu-24.04:7.2.4@sha256:bdc8e61026cbb844ede93d44d2c50055f51ebb2041906b60182bf3bee3139054 AS packages
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
    && pip install --no-index --no-deps /pins/torch/triton-3.7.1+gfx1100-py3-none-any.whl \
    && python3 /pins/torch/prune.py gfx1100 /opt/venv --strip \
    && echo /opt/rocm/share/amd_smi > "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/amdsmi.pth" \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm \
    && /usr/bin/python3 /pins/torch/parts.py 4000000000 5 /opt/venv

FROM packages AS torch
COPY --from=torch-parts /parts/0/ /
COPY --from=torch-parts /parts/1/ /
COPY --from=torch-parts /parts/2/ /
COPY --from=torch-parts /parts/3/ /
COPY --from=torch-parts /parts/4/ /
RUN python3 -c "import amdsmi"

FROM rocm/dev-ubuntu-24.04:7.2.4-complete@sha256:92f309c51b52cef8762867848f1529dee821624f23cd5df38455e819538f762f AS toolchain
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 \
    apt-get update \
    && apt-get install -y --no-install-recommends \
        ccache \
        git \
        libdrm-dev \
        libnuma-dev \
        patch \
        python3-dev \
        python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=torch /opt/venv/ /opt/venv/
ENV PYTORCH_ROCM_ARCH=gfx1100 \
    AMDGPU_TARGET=gfx1100 \
    GPU_TARGETS=gfx1100 \
    PATH=/opt/venv/bin:$PATH
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=cache,id=pip-gfx1100-py3.12,target=/root/.cache/pip \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    --mount=type=bind,source=pins/build,target=/pins/build \
    --mount=type=bind,source=wheels/build,target=/wheelhouse \
    pip install --find-links /wheelhouse -c /pins/torch/constraints.txt -r /pins/build/build.txt \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm

# what the compilers read, and no more: the kernel package's Python files come back when the wheel is joined
FROM toolchain AS native-inputs
WORKDIR /in
COPY source/python/sglang/kernels/aot python/sglang/kernels/aot
RUN if [ -f python/sglang/kernels/aot/pyproject_rocm.toml ]; then \
        mv python/sglang/kernels/aot/pyproject_rocm.toml python/sglang/kernels/aot/pyproject.toml; fi \
    && find python/sglang/kernels/aot/python -name '*.py' -exec truncate --size 0 {} +

FROM toolchain AS native-build
WORKDIR /src
COPY --from=native-inputs /in/ ./
WORKDIR /src/python/sglang/kernels/aot
# torch's builder calls the compiler that PYTORCH_NVCC names, for HIP too
RUN --mount=type=secret,id=jobs \
    --mount=type=cache,id=ccache-sglang-gfx1100-rocm7.2-py3.12,target=/root/.ccache \
    MAX_JOBS="$(cat /run/secrets/jobs 2>/dev/null || echo 1)" CCACHE_DIR=/root/.ccache CCACHE_BASEDIR=/src \
    PYTORCH_NVCC="ccache /opt/rocm/bin/hipcc" \
    python3 setup_rocm.py bdist_wheel --dist-dir /native

# the all-reduce extension is keyed by a hash of its sources, so they stay where it was built; with its library beside them
# no server compiles at its first start
FROM toolchain AS rdna-ar
WORKDIR /opt/sglang/scripts/rdna_ar
COPY source/scripts/rdna_ar/ ./
COPY source/python/sglang/kernels/aot/csrc/allreduce/ /opt/sglang/python/sglang/kernels/aot/csrc/allreduce/
RUN --mount=type=secret,id=jobs \
    MAX_JOBS="$(cat /run/secrets/jobs 2>/dev/null || echo 1)" \
    python3 rdna_ar_ext.py \
    && key="$(python3 -c 'import rdna_ar_ext; print(rdna_ar_ext._BUILD_KEY)')" \
    && ls vendor/*"$key"*.so

FROM toolchain AS wheel
WORKDIR /src
COPY source/ ./
RUN --mount=type=bind,from=native-build,source=/native,target=/native \
    --mount=type=bind,source=pins/build,target=/pins/build \
    if [ -f python/pyproject_other.toml ]; then mv python/pyproject_other.toml python/pyproject.toml; fi \
    && SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SGLANG=VERSION SGLANG_BUILD_RUST_EXTS=none \
    pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels ./python \
    && python3 /pins/build/native.py join /native/*.whl /wheels python/sglang/kernels/aot/python

FROM torch AS runtime
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=cache,id=pip-gfx1100-py3.12,target=/root/.cache/pip \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    --mount=type=bind,source=pins/run,target=/pins/run \
    --mount=type=bind,source=wheels/run,target=/wheelhouse \
    pip install --find-links /wheelhouse -c /pins/run/constraints.txt -r /pins/run/run.txt \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm
COPY pins/run/gfx1100-entry /usr/local/bin/
ENV HIP_FORCE_DEV_KERNARG=1 \
    SAFETENSORS_FAST_GPU=1 \
    SGLANG_RDNA_AR_PATH=/opt/sglang/scripts/rdna_ar \
    SGLANG_USE_AITER=0
COPY --from=rdna-ar /opt/sglang/ /opt/sglang/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm
COPY tools/ /
COPY Dockerfile chain/ /usr/share/gfx1100/
LABEL org.opencontainers.image.title="SGLang, StevenChenSE fork, gfx1100" \
      org.opencontainers.image.revision="..." \
      org.opencontainers.image.version="..." \
      org.opencontainers.image.base.name="rocm/dev-ubuntu-24.04:7.2.4" \
      org.opencontainers.image.base.digest="sha256:bdc8e61026cbb844ede93d44d2c50055f51ebb2041906b60182bf3bee3139054" \
      io.gfx1100.stack="sglang" \
      io.gfx1100.arch="gfx1100" \
      io.gfx1100.lock-sha256="..." \
      io.gfx1100.series-sha256="..."
USER 10001:10001
WORKDIR /home/engine
EXPOSE 30000
ENTRYPOINT ["gfx1100-entry", "sglang.launch_server"]
