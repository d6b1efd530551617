/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define KEY_CARD "berth.nccl.card"
#define KEY_GO "berth.nccl.go"
#define KEY_IN "berth.nccl.in"
#define KEY_AT "berth.nccl.at"
#define KEY_END "berth.nccl.end"
/* Others wait for rank 0's word longer than rank 0 waits for them: it names who is missing. */
#define WORD_MS 5000
#define LEAST_MS 20 /* for one rank's value */
#define NAMED_MAX 16

/* Rank 0's word, before the hosts. */
struct go {
	struct error err;
	int32_t shared;
	unsigned char id[MEET_ID_SIZE];
};

static int left_ms(int64_t until)
{
	int64_t left = until - clock_now_ms();

	return left > LEAST_MS ? (int)left : LEAST_MS;
}

/* A value of exactly size bytes. */
static int get(struct ranks *ranks, int rank, const char *key, int timeout_ms, void *to,
	       size_t size, struct error *err)
{
	void *data;
	size_t got;
	int rc = ranks_get(ranks, rank, key, timeout_ms, &data, &got, err);

	if (rc)
		return rc;
	if (got == size)
		memcpy(to, data, size);
	else
		rc = error_set(err, ERR_DATA,
			       "rank %d says %zu bytes under %s, expected %zu: it runs another "
			       "version of berth",
			       rank, got, key, size);
	free(data);
	return rc;
}

/* ---- begin ---- */

static void add_missing(char *text, size_t size, int rank, int *count)
{
	size_t used = strlen(text);

	if (++*count <= NAMED_MAX)
		snprintf(text + used, size - used, "%s%d", *count > 1 ? "," : "", rank);
}

static void end_missing(char *text, size_t size, int count)
{
	size_t used = strlen(text);

	if (count > NAMED_MAX)
		snprintf(text + used, size - used, " and %d more", count - NAMED_MAX);
}

static int hear_cards(struct ranks *ranks, struct gpu_card *cards, int size, int timeout_ms,
		      struct error *err)
{
	int64_t until = clock_now_ms() + timeout_ms;
	char missing[128] = "";
	int count = 0;

	for (int rank = 1; rank < size; rank++) {
		struct error why = {0};
		int rc = get(ranks, rank, KEY_CARD, left_ms(until), &cards[rank],
			     sizeof cards[rank], &why);

		if (rc == -ERR_DATA) {
			*err = why;
			return rc;
		}
		if (rc)
			add_missing(missing, sizeof missing, rank, &count);
	}
	end_missing(missing, sizeof missing, count);
	return count ? error_set(err, ERR_NETWORK,
				 "rank%s %s did not come within %d s to begin with NCCL; look at "
				 "that rank's last lines, or give more time by --comm-timeout",
				 count > 1 ? "s" : "", missing, timeout_ms / 1000)
		     : 0;
}

/* On rank 0. */
static int decide(struct ranks *ranks, const struct gpu_card *own, bool allow_shared,
		  int timeout_ms, const unsigned char *id, struct meet *meet, struct error *err)
{
	size_t hosts_size = (size_t)meet->size * sizeof *meet->hosts;
	struct gpu_card *cards = calloc((size_t)meet->size, sizeof *cards);
	char *word = calloc(1, sizeof(struct go) + hosts_size);
	struct go go = {0};
	int rc;

	if (!cards || !word) {
		rc = error_memory(err, "the ranks' GPUs");
		goto out;
	}
	cards[0] = *own;
	rc = hear_cards(ranks, cards, meet->size, timeout_ms, &go.err);
	if (!rc)
		rc = gpus_check(cards, meet->size, allow_shared, &meet->shared, &go.err);
	go.shared = meet->shared;
	memcpy(go.id, id, sizeof go.id);
	for (int rank = 0; rank < meet->size; rank++)
		memcpy(meet->hosts[rank], cards[rank].host, sizeof *meet->hosts);
	memcpy(word, &go, sizeof go);
	memcpy(word + sizeof go, meet->hosts, hosts_size);
	if (rc && err)
		*err = go.err;

	int put = ranks_put(ranks, KEY_GO, word, sizeof go + hosts_size, rc ? NULL : err);

	rc = rc ? rc : put;
out:
	free(word);
	free(cards);
	return rc;
}

static int obey(struct ranks *ranks, int timeout_ms, unsigned char *id, struct meet *meet,
		struct error *err)
{
	size_t hosts_size = (size_t)meet->size * sizeof *meet->hosts;
	char *word = calloc(1, sizeof(struct go) + hosts_size);
	struct go go;
	int rc = word ? get(ranks, 0, KEY_GO, timeout_ms, word, sizeof go + hosts_size, err)
		      : error_memory(err, "the ranks' GPUs");

	if (rc) {
		free(word);
		return rc == -ERR_NETWORK ? error_prefix(err, "waiting for rank 0's word") : rc;
	}
	memcpy(&go, word, sizeof go);
	memcpy(meet->hosts, word + sizeof go, hosts_size);
	free(word);
	meet->shared = go.shared;
	memcpy(id, go.id, sizeof go.id);
	if (!go.err.code)
		return 0;
	go.err.text[sizeof go.err.text - 1] = 0;
	return error_set(err, go.err.code, "%s", go.err.text);
}

int meet_begin(struct ranks *ranks, const struct gpu_card *own, bool allow_shared, int timeout_ms,
	       unsigned char id[MEET_ID_SIZE], struct meet *out, struct error *err)
{
	const struct ranks_place *place = ranks_place(ranks);

	*out = (struct meet){.ranks = ranks, .rank = place->rank, .size = place->size};
	out->hosts = calloc((size_t)place->size, sizeof *out->hosts);
	if (!out->hosts)
		return error_memory(err, "the ranks' hosts");
	if (!place->rank)
		return decide(ranks, own, allow_shared, timeout_ms, id, out, err);

	int rc = ranks_put(ranks, KEY_CARD, own, sizeof *own, err);

	return rc ? rc : obey(ranks, timeout_ms + WORD_MS, id, out, err);
}

void meet_free(struct meet *meet)
{
	free(meet->hosts);
	meet->hosts = NULL;
}

/* ---- who is missing ---- */

int meet_enter(const struct meet *meet, struct error *err)
{
	return ranks_put(meet->ranks, KEY_IN, "in", 2, err);
}

void meet_missing(const struct meet *meet, int wait_ms, char *text, size_t size)
{
	int64_t until = clock_now_ms() + wait_ms;
	int count = 0;

	text[0] = 0;
	for (int rank = 0; rank < meet->size; rank++) {
		char in[2];
		size_t used;

		if (rank == meet->rank ||
		    !get(meet->ranks, rank, KEY_IN, left_ms(until), in, sizeof in, NULL))
			continue;
		add_missing(text, size, rank, &count);
		used = strlen(text);
		if (count <= NAMED_MAX)
			snprintf(text + used, size - used, " on %s", meet->hosts[rank]);
	}
	end_missing(text, size, count);
}

int meet_tell(const struct meet *meet, const struct watch_word *own, struct error *err)
{
	return ranks_put(meet->ranks, KEY_AT, own, sizeof *own, err);
}

void meet_hear(const struct meet *meet, int wait_ms, struct watch_word *words, bool *heard)
{
	int64_t until = clock_now_ms() + wait_ms;

	for (int rank = 0; rank < meet->size; rank++)
		heard[rank] = rank != meet->rank && !get(meet->ranks, rank, KEY_AT, left_ms(until),
							 &words[rank], sizeof words[rank], NULL);
}

/* ---- who has given up ---- */

int meet_end(const struct meet *meet, const char *why, struct error *err)
{
	return ranks_put(meet->ranks, KEY_END, why, strlen(why), err);
}

enum meet_end meet_ended(struct meet *meet, int wait_ms, char *why, size_t size)
{
	void *data;
	size_t got;
	int rc = ranks_get_any(meet->ranks, KEY_END, wait_ms, &data, &got, NULL);

	if (rc == -ERR_UNAVAILABLE)
		return meet->asked ? MEET_GONE : MEET_NOBODY_TO_ASK;
	meet->asked = true;
	if (rc)
		return MEET_GOES_ON;
	snprintf(why, size, "%s", (const char *)data);
	free(data);
	return MEET_ENDED;
}
