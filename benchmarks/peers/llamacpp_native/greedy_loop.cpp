// Greedy decoding of a batch with llama.cpp, timed token by token. Written for a comparison with other
// engines: prompts go in as ids, every sequence gets the same number of tokens, and EOS ends none.

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

struct Loop {
    llama_model *model;
    llama_context *context;
    int vocab_size;
};

void add(llama_batch &batch, llama_token token, int position, int sequence, bool wants_logits) {
    const int at = batch.n_tokens++;
    batch.token[at] = token;
    batch.pos[at] = position;
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = sequence;
    batch.logits[at] = wants_logits;
}

void keep_errors(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

}  // namespace

extern "C" {

// A model with room for `max_sequences` of `tokens_each`; null where it cannot be loaded.
void *loop_open(const char *path, int threads, int max_sequences, int tokens_each) {
    llama_log_set(keep_errors, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (model == nullptr) {
        return nullptr;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = max_sequences * tokens_each;
    params.n_batch = 2048;  // llama.cpp's own default, as is the physical batch of 512
    params.n_seq_max = max_sequences;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) {
        return nullptr;
    }
    return new Loop{model, context, llama_vocab_n_tokens(llama_model_get_vocab(model))};
}

// Runs `sequences` prompts, one after the other in `prompts`, of `prompt_tokens` each. Writes ids to
// `token_ids` and seconds since the start to `seconds`, both [output_tokens][sequences]. 0 where all went well.
int loop_run(void *handle, const int *prompts, int sequences, int prompt_tokens, int output_tokens,
             int *token_ids, double *seconds) {
    const Loop &loop = *static_cast<Loop *>(handle);
    llama_memory_clear(llama_get_memory(loop.context), false);
    const int most = static_cast<int>(llama_n_batch(loop.context));
    llama_batch batch = llama_batch_init(most, 0, 1);
    const auto start = std::chrono::steady_clock::now();
    int status = 0;

    // Takes each sequence's likeliest token; places of logits are by order in the batch.
    const auto draw = [&](int first, int count, int index) {
        for (int place = 0; place < batch.n_tokens; ++place) {
            if (!batch.logits[place]) {
                continue;
            }
            const float *logits = llama_get_logits_ith(loop.context, place);
            token_ids[index * sequences + batch.seq_id[place][0]] =
                static_cast<int>(std::max_element(logits, logits + loop.vocab_size) - logits);
        }
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        std::fill_n(seconds + index * sequences + first, count, passed.count());
    };

    // As many whole prompts at once as a batch holds.
    const int together = std::max(1, most / prompt_tokens);
    for (int first = 0; first < sequences && status == 0; first += together) {
        const int count = std::min(together, sequences - first);
        batch.n_tokens = 0;
        for (int sequence = first; sequence < first + count; ++sequence) {
            for (int at = 0; at < prompt_tokens; ++at) {
                add(batch, prompts[sequence * prompt_tokens + at], at, sequence, at == prompt_tokens - 1);
            }
        }
        status = llama_decode(loop.context, batch);
        if (status == 0) {
            draw(first, count, 0);
        }
    }
    for (int index = 1; index < output_tokens && status == 0; ++index) {
        batch.n_tokens = 0;
        for (int sequence = 0; sequence < sequences; ++sequence) {
            add(batch, token_ids[(index - 1) * sequences + sequence], prompt_tokens + index - 1, sequence, true);
        }
        status = llama_decode(loop.context, batch);
        if (status == 0) {
            draw(0, sequences, index);
        }
    }
    llama_batch_free(batch);
    return status;
}

}  // extern "C"
