# Rendered from templates/Dockerfile.vllm.j2 by `gfx1100 render vllm`; edit the template.
# vLLM, JartX fork, RDNA3 full stack

FROM rocm/dev-ubuntu-24.04:7.2-complete@sha256:7777777777777777777777777777777777777777777777777777777777777777 AS rccl
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PYTORCH_ROCM_ARCH=gfx1100 \
    AMDGPU_TARGET=gfx1100 \
    GPU_TARGETS=gfx1100
COPY fetched/rccl/ /src/
WORKDIR /src/build
RUN --mount=type=secret,id=jobs \
    cmake -DCMAKE_BUILD_TYPE=Release -DGPU_TARGETS=gfx1100 -DBUILD_TESTS=OFF -DCMAKE_PREFIX_PATH=/opt/rocm .. \
    && cmake --build . --parallel "$(cat /run/secrets/jobs 2>/dev/null || echo 1)" \
    && mkdir /rccl \
    && cp librccl.so.1.0 /rccl/librccl.so

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
    --mount=type=bind,from=rccl,source=/rccl,target=/rccl \
    python3 -m venv /opt/venv \
    && pip install --require-hashes --no-deps --find-links /wheelhouse -r /pins/torch/wheels.txt \
    && pip install --no-index --no-deps /pins/torch/triton-3.7.1+gfx1100-py3-none-any.whl \
    && python3 /pins/torch/prune.py gfx1100 /opt/venv --strip \
    && cp /rccl/* /opt/venv/lib/python3.12/site-packages/torch/lib/ \
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

# what the compilers read, and no more: the next stage is built anew only when one of these files changes
FROM toolchain AS native-inputs
WORKDIR /in
COPY source/setup.py setup.py
COPY source/pyproject.toml pyproject.toml
COPY source/CMakeLists.txt CMakeLists.txt
COPY source/cmake cmake
COPY source/csrc csrc
COPY source/tools/build_rust.py tools/build_rust.py
COPY source/vllm/envs.py vllm/envs.py
# setup.py asks a Python file for its settings and reads requirements that the kernels have nothing to do with;
# -B: a .pyc that is left behind would hold the size of the file as it was
RUN --mount=type=bind,source=pins/build,target=/pins/build \
    python3 -B /pins/build/native.py reduce setup.py vllm/envs.py \
    && mkdir -p requirements \
    && touch vllm/__init__.py requirements/rocm.txt requirements/common.txt

FROM toolchain AS native-build
WORKDIR /src
COPY --from=native-inputs /in/ ./
# this wheel is only a box for the compiled libraries, so it has a version of its own, which no commit changes
RUN --mount=type=secret,id=jobs \
    --mount=type=cache,id=ccache-vllm-gfx1100-rocm7.2-py3.12,target=/root/.ccache \
    MAX_JOBS="$(cat /run/secrets/jobs 2>/dev/null || echo 1)" CCACHE_DIR=/root/.ccache CCACHE_BASEDIR=/src \
    CMAKE_BUILD_TYPE=Release VLLM_TARGET_DEVICE=rocm SETUPTOOLS_SCM_PRETEND_VERSION=0.0.0+native \
    python3 setup.py bdist_wheel --dist-dir /native

FROM toolchain AS wheel
WORKDIR /src
COPY source/ ./
# the engine's own list of precompiled files is one that a new library can be missing from: join adds it
RUN --mount=type=bind,from=native-build,source=/native,target=/native \
    --mount=type=bind,source=pins/build,target=/pins/build \
    SETUPTOOLS_SCM_PRETEND_VERSION=VERSION VLLM_TARGET_DEVICE=rocm \
    VLLM_USE_PRECOMPILED=1 VLLM_PRECOMPILED_WHEEL_LOCATION="$(echo /native/*.whl)" \
    python3 setup.py bdist_wheel --dist-dir /tmp/wheels \
    && python3 /pins/build/native.py join /tmp/wheels/*.whl /wheels /native/*.whl

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
    SAFETENSORS_FAST_GPU=1
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=pins/torch,target=/pins/torch \
    pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && python3 /pins/torch/guard.py /pins/torch/constraints.txt rocm \
    && pip check
COPY tools/ /
COPY Dockerfile chain/ /usr/share/gfx1100/
LABEL org.opencontainers.image.title="vLLM, JartX fork, RDNA3 full stack" \
      org.opencontainers.image.revision="..." \
      org.opencontainers.image.version="..." \
      org.opencontainers.image.base.name="rocm/dev-ubuntu-24.04:7.2.4" \
      org.opencontainers.image.base.digest="sha256:bdc8e61026cbb844ede93d44d2c50055f51ebb2041906b60182bf3bee3139054" \
      io.gfx1100.stack="vllm" \
      io.gfx1100.arch="gfx1100" \
      io.gfx1100.lock-sha256="..." \
      io.gfx1100.series-sha256="..."
USER 10001:10001
WORKDIR /home/engine
EXPOSE 8000
ENTRYPOINT ["gfx1100-entry", "vllm", "serve"]
