/* SPDX-License-Identifier: BSD-3-Clause */
/* Which algorithm was the fastest for a layer, kept on disk from one run to the next: a line a
 * layer, "key<TAB>numbers", in a file of one GPU model and one version of cuDNN. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_TUNING_TUNING_CACHE_H
#define BERTH_TRAIN_DEVICE_CUDA_TUNING_TUNING_CACHE_H

#include <stdbool.h>

#define TUNING_CACHE_NUMBERS 20
#define TUNING_CACHE_KEY_BYTES 176

struct tuning_cache; /* opaque */

/* Read the file of XDG_CACHE_HOME/berth or ~/.cache/berth for this GPU and version; what is not
 * there, not readable or not of this form counts as empty: it is a cache. NULL: memory is out. */
struct tuning_cache *tuning_cache_open(const char *gpu, unsigned long version);
/* The same of a file, for the tests; path NULL: kept nowhere. */
struct tuning_cache *tuning_cache_open_file(const char *path);
/* numbers of key. No characters below a space in it. */
bool tuning_cache_find(const struct tuning_cache *tuned, const char *key, int *numbers);
/* Remember, in place of what was known of key. Where memory is out nothing is. */
void tuning_cache_add(struct tuning_cache *tuned, const char *key, const int *numbers);
/* Write what is new, with what others wrote meanwhile; replaced as a whole. Where it cannot be
 * written nothing happens: the next run measures again. */
void tuning_cache_save(struct tuning_cache *tuned);
void tuning_cache_free(struct tuning_cache *tuned); /* NULL is fine */

#endif
