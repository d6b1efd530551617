/* SPDX-License-Identifier: BSD-3-Clause */
/* Select the implementation: PMIx, the environment, or a world of one. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/module.h"
#include "rendezvous/ranks.h"

struct value {
	struct value *next;
	void *data;
	size_t size;
	char key[];
};

struct ranks {
	const struct ranks_client_ops *ops; /* NULL: world of one */
	void *state;
	struct ranks_place place;
	struct value *values; /* world of one */
	/* NCCL's watchdog asks, too: one request at a time. */
	pthread_mutex_t lock;
};

/* PMIx's place and the environment's must agree: a program may read either. */
static int check_place(const struct env *env, const struct ranks_place *pmix, struct error *err)
{
	struct ranks_place seen;

	if (!env_get(env, "RANK") && !env_get(env, "WORLD_SIZE"))
		return 0;
	int rc = place_from_env(env, &seen, err);

	if (rc)
		return rc;
	if (seen.rank != pmix->rank || seen.size != pmix->size)
		return error_set(err, ERR_DATA,
				 "PMIx (PMIX_NAMESPACE) reports rank %d of %d, but RANK and "
				 "WORLD_SIZE give rank %d of %d: unset RANK and WORLD_SIZE, or "
				 "PMIX_NAMESPACE, whichever comes from another launcher",
				 pmix->rank, pmix->size, seen.rank, seen.size);
	return 0;
}

static int join_pmix(const struct env *env, int timeout_ms, struct ranks *ranks, struct error *err)
{
	void *symbol;
	int rc = module_load("ranks-pmix", "ranks_client_pmix", env_get(env, "BERTH_MODULE_PATH"),
			     0, &symbol, err);

	if (rc)
		return rc;
	const struct ranks_client_ops *ops = symbol;

	rc = ops->join(env, timeout_ms, &ranks->state, &ranks->place, err);
	if (rc)
		return rc;
	rc = check_place(env, &ranks->place, err);
	if (rc) {
		ops->leave(ranks->state);
		return rc;
	}
	ranks->ops = ops;
	return 0;
}

static int join_env(const struct env *env, int timeout_ms, struct ranks *ranks, struct error *err)
{
	int rc = ranks_client_env.join(env, timeout_ms, &ranks->state, &ranks->place, err);

	if (!rc)
		ranks->ops = &ranks_client_env;
	return rc;
}

static int join(const struct env *env, bool pmix, int timeout_ms, struct ranks **out,
		struct error *err)
{
	struct ranks *ranks = calloc(1, sizeof *ranks);
	bool numbers = env_get(env, "RANK") || env_get(env, "WORLD_SIZE");
	int rc = 0;

	if (!ranks)
		return error_memory(err, "joining the job");
	ranks->place = (struct ranks_place){.size = 1, .local_size = 1, .address = "127.0.0.1"};
	if (pmix) {
		rc = join_pmix(env, timeout_ms, ranks, err);
		/* Without the module the environment may still have the place. */
		if (rc == -ERR_UNAVAILABLE && numbers)
			rc = join_env(env, timeout_ms, ranks, err);
	} else if (numbers) {
		rc = join_env(env, timeout_ms, ranks, err);
	}
	if (rc) {
		free(ranks);
		return rc;
	}
	/* A world of one needs no rendezvous; the port stays free for the program. */
	if (ranks->place.size == 1 && ranks->ops == &ranks_client_env) {
		ranks->ops->leave(ranks->state);
		ranks->ops = NULL;
	}
	log_info(LOG_RENDEZVOUS, "rank %d of %d, through %s", ranks->place.rank, ranks->place.size,
		 ranks->ops == &ranks_client_env ? "the environment"
		 : ranks->ops			 ? "PMIx"
						 : "nothing: a world of one");
	pthread_mutex_init(&ranks->lock, NULL);
	*out = ranks;
	return 0;
}

int ranks_join(const struct env *env, int timeout_ms, struct ranks **out, struct error *err)
{
	/* PMIx's variables are torchrun's own, not its workers'. */
	bool pmix = env_get(env, "PMIX_NAMESPACE") && !env_get(env, TORCHRUN_WORKER);

	return join(env, pmix, timeout_ms, out, err);
}

int ranks_join_store(const struct env *env, struct ranks **out, struct error *err)
{
	return join(env, false, 0, out, err);
}

const struct ranks_place *ranks_place(const struct ranks *ranks)
{
	return &ranks->place;
}

int ranks_barrier(struct ranks *ranks, int timeout_ms, struct error *err)
{
	pthread_mutex_lock(&ranks->lock);

	int rc = ranks->ops ? ranks->ops->barrier(ranks->state, timeout_ms, err) : 0;

	pthread_mutex_unlock(&ranks->lock);
	log_debug(LOG_RENDEZVOUS, "barrier of %d ranks: %s", ranks->place.size,
		  rc ? "failed" : "passed");
	return rc;
}

static struct value *value_find(struct ranks *ranks, const char *key)
{
	struct value *value = ranks->values;

	while (value && strcmp(value->key, key))
		value = value->next;
	return value;
}

static int put_single(struct ranks *ranks, const char *key, const void *data, size_t size,
		      struct error *err)
{
	struct value *value = value_find(ranks, key);
	void *copy = bytes_copy(data, size);

	if (copy && !value && (value = calloc(1, sizeof *value + strlen(key) + 1))) {
		strcpy(value->key, key);
		value->next = ranks->values;
		ranks->values = value;
	}
	if (!copy || !value) {
		free(copy);
		return error_memory(err, "a value put for the other ranks");
	}
	free(value->data);
	value->data = copy;
	value->size = size;
	return 0;
}

static int key_check(const char *key, struct error *err)
{
	size_t length = strlen(key);

	if (length && length <= RANKS_KEY_MAX)
		return 0;
	return error_set(err, ERR_DATA, "a key has %zu bytes, expected 1 to %d", length,
			 RANKS_KEY_MAX);
}

int ranks_put(struct ranks *ranks, const char *key, const void *data, size_t size,
	      struct error *err)
{
	int rc = key_check(key, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&ranks->lock);
	rc = ranks->ops ? ranks->ops->put(ranks->state, key, data, size, err)
			: put_single(ranks, key, data, size, err);
	pthread_mutex_unlock(&ranks->lock);
	return rc;
}

static int get_single(struct ranks *ranks, const char *key, void **data, size_t *size,
		      struct error *err)
{
	/* No other rank can put it while we wait. */
	const struct value *value = value_find(ranks, key);
	void *copy = value ? bytes_copy(value->data, value->size) : NULL;

	if (!value)
		return error_set(err, ERR_NETWORK, "rank 0, the only rank, has not put '%s'", key);
	if (!copy)
		return error_memory(err, "a value");
	*data = copy;
	*size = value->size;
	return 0;
}

/* rank: checked, or RANKS_ANY */
static int get(struct ranks *ranks, int rank, const char *key, int timeout_ms, void **data,
	       size_t *size, struct error *err)
{
	int rc = key_check(key, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&ranks->lock);
	rc = ranks->ops ? ranks->ops->get(ranks->state, rank, key, timeout_ms, data, size, err)
			: get_single(ranks, key, data, size, err);
	pthread_mutex_unlock(&ranks->lock);
	return rc;
}

int ranks_get(struct ranks *ranks, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err)
{
	if (rank < 0 || rank >= ranks->place.size)
		return error_set(err, ERR_DATA,
				 "cannot get '%s' from rank %d: expected a rank from 0 to %d", key,
				 rank, ranks->place.size - 1);
	return get(ranks, rank, key, timeout_ms, data, size, err);
}

int ranks_get_any(struct ranks *ranks, const char *key, int timeout_ms, void **data, size_t *size,
		  struct error *err)
{
	return get(ranks, RANKS_ANY, key, timeout_ms, data, size, err);
}

void ranks_leave(struct ranks *ranks)
{
	if (!ranks)
		return;
	if (ranks->ops)
		ranks->ops->leave(ranks->state);
	while (ranks->values) {
		struct value *value = ranks->values;

		ranks->values = value->next;
		free(value->data);
		free(value);
	}
	pthread_mutex_destroy(&ranks->lock);
	free(ranks);
}
