/* SPDX-License-Identifier: BSD-3-Clause */
/* The fastest algorithm for each layer, cached on disk between runs. A file holds one GPU model and
 * one version of cuDNN, with one line per layer: "key<TAB>numbers". */
#ifndef BERTH_TRAIN_DEVICE_CUDA_TUNING_TUNING_CACHE_H
#define BERTH_TRAIN_DEVICE_CUDA_TUNING_TUNING_CACHE_H

#include <stdbool.h>

#define TUNING_CACHE_NUMBERS 21
/* The last number counts the starts that have ended while they measured this layer; the others are
 * then a choice that nothing measured. 0: measured. */
#define TUNING_CACHE_ATTEMPTS 20
#define TUNING_CACHE_ATTEMPTS_MAX 2 /* from then on nothing is measured */
#define TUNING_CACHE_KEY_BYTES 176

struct tuning_cache; /* opaque */

/* Read the cache for this GPU and version from XDG_CACHE_HOME/berth or ~/.cache/berth. A missing,
 * unreadable or malformed file counts as empty. NULL if memory is out. */
struct tuning_cache *tuning_cache_open(const char *gpu, unsigned long version);
/* The same from a given file, for tests. path NULL: not stored. */
struct tuning_cache *tuning_cache_open_file(const char *path);
/* Find the numbers of key. key must not contain characters below a space. */
bool tuning_cache_find(struct tuning_cache *tuned, const char *key, int *numbers);
/* Store numbers, replacing those of key. If memory is out, nothing is stored. */
void tuning_cache_add(struct tuning_cache *tuned, const char *key, const int *numbers);
/* Those that this process has found or stored, as text for ranks with the same GPU; malloced, or
 * NULL if memory is out. take: store them, for this process alone. */
char *tuning_cache_text(const struct tuning_cache *tuned);
void tuning_cache_take(struct tuning_cache *tuned, char *text);
/* Measuring has ended several starts: the file to delete to try it again ("" if there is none), or
 * NULL. The caller should not measure. */
const char *tuning_cache_given_up(const struct tuning_cache *tuned);
/* Write new entries, merged with what other processes wrote meanwhile; the file is replaced as a
 * whole. A failure is ignored: the next run measures again. */
void tuning_cache_save(struct tuning_cache *tuned);
void tuning_cache_free(struct tuning_cache *tuned); /* NULL is fine */

#endif
