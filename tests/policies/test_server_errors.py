"""What servers report: prompts that are too long, in their own words, and what only resembles that."""

import json

import pytest

from hgpo_train.policies.server_errors import read_error

TOO_LONG = {
    "OpenAI": "This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 tokens.",
    "OpenAI, Responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI, one message": "Invalid 'messages[0].content': string too long. Expected a string with maximum "
    "length 1048576, "
    "but got a string with length 1500000 instead.",
    "Azure": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
    "vLLM": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in "
    "the messages, "
    "500 in the completion). Please reduce the length of the messages or completion.",
    "vLLM, both limits": "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum "
    "context length is "
    "4096 tokens and your request has 3800 input tokens (512 > 4096 - 3800).",
    "vLLM, decoder": "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens.",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang, allowed": "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens). Use a "
    "shorter input.",
    "SGLang, total": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "TGI, inputs": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "llama.cpp": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "llama.cpp, batch": "input is too large to process. increase the physical batch size",
    "llama-cpp-python": "Requested tokens (9000) exceed context window of 4096",
    "Ollama": "prompt too long; exceeded max context length by 12 tokens",
    "Ollama, input": "the input length exceeds the context length",
    "LMDeploy": "The input is longer than session_len.",
    "TensorRT-LLM": "Prompt length (5000) exceeds maximum input length (4096). Set log level to info",
    "TensorRT-LLM, sum": "The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (4096)",
    "Fireworks": "The prompt is too long: 10000, model maximum context length: 8192",
    "Together": "The input exceeded the maximum number of tokens of this model: 5000 > 4096",
    "Groq": "Please reduce the length of the messages or completion.",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Vertex": "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic, both": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Bedrock": "The model returned the following errors: Input is too long for requested model.",
    "LiteLLM": "litellm.ContextWindowExceededError: BedrockException - {'message': 'Input is too long'}",
    "OpenRouter": 'This endpoint\'s maximum context length is 131072 tokens. Please use the "middle-out" transform',
    "xAI": "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "Cohere": "too many tokens: total number of tokens (prompt and prediction) cannot exceed 4096",
    "Cohere, size": "too many tokens: size limit exceeded by 123 tokens. Try using shorter or fewer inputs",
    "Databricks": "Prompt token count 9000 plus max_tokens 512 cannot exceed 4096.",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "LM Studio, only": "the model is loaded with context length of only 4096 tokens, which is not enough",
    "DashScope": "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "MiniMax": "invalid params, context window exceeds limit",
    "Zhipu": "Prompt exceeds max length",
    "Copilot": "prompt token count of 140000 exceeds the limit of 128000",
    "Cerebras": "Current length is 10000 while limit is 8192",
    "watsonx": "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
    "Cloudflare": "The estimated number of input and maximum output tokens (9000) exceeded this model context "
    "window limit",
    "TabbyAPI": "Prompt length 9000 is greater than max_seq_len 4096",
    "MLX": "Prompt has 9000 tokens, but the configured context size is 4096 tokens",
    "Volcengine": "Total tokens of image and text exceed max message tokens",
    "AI21": "Prompt has 300000 tokens, but the maximum is 262144",
    "a model in Chinese": "输入长度超过模型最大上下文",
    "a server in Chinese": "上下文长度超过模型限制",
    "OpenAI, more than a minute's tokens": "Request too large for gpt-4o on tokens per min (TPM): "
    "Limit 30000, Requested 37337. The input or output tokens must be reduced.",
    "OpenAI, text": "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576.",
    "nginx": "<html><head><title>413 Request Entity Too Large</title></head></html>",
}

OTHER = (
    "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got 200 instead.",
    "stop sequence length must be at most 16 tokens",
    "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 10000, Used 9000, Requested 4000.",
    "输出长度超过限制",
    "Too many tokens per minute",
    "Too many tokens, please wait before trying again.",
    "Number of request tokens has exceeded your per-minute rate limit",
    "max_tokens is too large: 5000. This model supports at most 4096 completion tokens, whereas you provided 5000.",
    "max_tokens: 5000 > 4096, which is the maximum allowed number of output tokens",
    "Input validation error: `max_new_tokens` must be <= 2048. Given: 4096",
    "Range of max_tokens should be [1, 2000]",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "The request took too long to process.",
    "You exceeded your current quota, please check your plan and billing details.",
    "Too many requests",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "messages must have alternating roles user and assistant",
    "the model `m` does not exist",
)


def bodies(message):
    """Return the forms in which servers send a message."""
    error = {"message": message, "type": "invalid_request_error", "code": 400}
    return [
        {"error": error},
        [{"error": error}],
        {"error": message},
        {"detail": message},
        {"detail": [{"loc": ["body"], "msg": message}]},
        {"object": "error", **error},
        {
            "error": {
                "message": "Provider returned error",
                "metadata": {"raw": json.dumps({"error": error})},
            }
        },
    ]


@pytest.mark.parametrize("server", TOO_LONG)
def test_a_prompt_that_is_too_long_is_recognised_at_any_status_and_in_any_form(server):
    message = TOO_LONG[server]
    for status in (400, 413, 422, 500, 200):
        for body in (
            message.encode(),
            *(json.dumps(body).encode() for body in bodies(message)),
        ):
            error = read_error(body, status)
            assert error.too_long, (status, body)
            assert not error.transient


@pytest.mark.parametrize("message", OTHER)
def test_other_limits_and_errors_are_not_taken_for_a_long_prompt(message):
    for status in (400, 422, 429, 500, 200):
        for body in (
            message.encode(),
            *(json.dumps(body).encode() for body in bodies(message)),
        ):
            assert not read_error(body, status).too_long, (status, body)


def test_a_request_larger_than_the_limit_of_a_minute_is_too_long_with_the_status_of_a_rate_limit():
    error = {
        "message": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 37337.",
        "code": "rate_limit_exceeded",
    }
    found = read_error(json.dumps({"error": error}).encode(), 429)
    assert (found.too_long, found.transient) == (True, False)


def test_the_code_says_it_alone_and_a_repeated_request_says_nothing():
    for code in (
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "prompt_too_long",
    ):
        assert read_error(
            json.dumps({"error": {"message": "Shorten it.", "code": code}}).encode(),
            400,
        ).too_long
    repeated = {
        "detail": [
            {
                "type": "missing",
                "msg": "Field required",
                "input": {"content": "the prompt is too long"},
            }
        ]
    }
    assert not read_error(json.dumps(repeated).encode(), 422).too_long
    late = {
        "error": {
            "message": "A proxy failed. " * 300
            + "The prompt exceeds the context length."
        }
    }
    assert read_error(json.dumps(late).encode(), 500).too_long


@pytest.mark.parametrize(
    ("status", "error", "transient"),
    [
        # With the status 200, an error is as lasting as its code.
        (200, {"message": "lost", "code": 502}, True),
        (200, {"message": "slow down", "code": "429"}, True),
        (200, {"message": "overloaded", "type": "overloaded_error"}, True),
        (200, "upstream failed", True),
        (200, {"message": "no such region", "code": 400}, False),
        (200, {"message": "bad key", "code": 401}, False),
        (200, {"message": "bad key", "code": "invalid_api_key"}, False),
        (200, {"message": "no money", "type": "insufficient_quota"}, False),
        # An account without money is no outage, whatever the status; the message alone does not say so.
        (
            429,
            {
                "message": "You exceeded your quota, check your billing.",
                "type": "insufficient_quota",
            },
            False,
        ),
        (
            429,
            {
                "message": "Your account balance is empty.",
                "type": "exceeded_current_quota_error",
            },
            False,
        ),
        (
            429,
            {
                "message": "You exceeded your quota, check your billing.",
                "status": "RESOURCE_EXHAUSTED",
            },
            True,
        ),
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, True),
        (501, {"message": "not implemented"}, False),
        (503, {"message": "busy"}, True),
    ],
)
def test_what_is_lasting_is_not_asked_again(status, error, transient):
    found = read_error(json.dumps({"error": error, "choices": None}).encode(), status)
    assert found.transient is transient
    assert found.message == (error if isinstance(error, str) else error["message"])
