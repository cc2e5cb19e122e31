# HGPO with vLLM, for a machine with an NVIDIA GPU and its container toolkit. CUDA's libraries come with torch's wheels.
#   docker build -t hgpo .
#   docker run --gpus all --shm-size=16g -v ~/.cache/huggingface:/huggingface -v $PWD/runs:/work/runs hgpo check gpu
FROM python:3.12-bookworm
ENV HF_HOME=/huggingface PIP_NO_CACHE_DIR=1
WORKDIR /work
COPY . /source
RUN pip install '/source[train,vllm]'
ENTRYPOINT ["hgpo"]
