# HGPO with vLLM, for a machine with an NVIDIA GPU and its container toolkit. CUDA's libraries come with torch's wheels.
#   docker build -t hgpo .
#   docker run --rm --gpus all --shm-size=16g -v ~/.cache/huggingface:/huggingface -v $PWD:/work hgpo check gpu
# Data (hgpo data fetch) and runs are written to the working directory, so that is mounted, too.
FROM python:3.12-bookworm
# What --gpus sets in Docker; Podman, Kubernetes and Slurm's containers read it from the image.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV HF_HOME=/huggingface PIP_NO_CACHE_DIR=1
WORKDIR /work
COPY . /source
RUN pip install '/source[train,vllm]'
ENTRYPOINT ["hgpo"]
