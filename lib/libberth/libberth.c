/* SPDX-License-Identifier: BSD-3-Clause */
/* The public C API on top of base and rendezvous. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "libberth.h"
#include "rendezvous/ranks.h"

#define PUBLIC __attribute__((visibility("default")))

/* A process has one place in one job. */
static struct {
	int count; /* calls of berth_init without berth_finalize */
	struct ranks *ranks;
	struct env *env; /* as it was at berth_init */
	struct local_plan own;
	int attempt;
	int64_t end_time;
} self;

/* There is one connection for exchanges. */
static pthread_mutex_t exchange = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct error last;

PUBLIC const char *berth_error(void)
{
	return last.text;
}

PUBLIC const char *berth_code_text(int code)
{
	switch (code) {
	case BERTH_USAGE:
		return "incorrect use of libberth";
	case BERTH_DATA:
		return "invalid data";
	case BERTH_INPUT:
		return "an input is missing or cannot be read";
	case BERTH_UNAVAILABLE:
		return "a required resource is unavailable";
	case BERTH_INTERNAL:
		return "internal error in berth";
	case BERTH_NETWORK:
		return "a rank or the network failed";
	default:
		return code >= 0 ? "no error" : "unknown error";
	}
}

PUBLIC const char *berth_version(void)
{
	return BERTH_VERSION;
}

static int not_joined(const char *function)
{
	return error_set(&last, ERR_USAGE,
			 "%s was called before berth_init or after berth_finalize", function);
}

/* Copy an error of rendezvous or base to this thread; the codes are the same. */
static int report(int rc, const struct error *err)
{
	if (rc < 0)
		last = *err;
	return rc;
}

static int read_job(struct error *err)
{
	const char *attempt = env_get(self.env, "BERTH_ATTEMPT");
	const char *end_time = env_get(self.env, "BERTH_END_TIME");
	const char *plan = env_get(self.env, "BERTH_PLAN_FILE");
	int rc = 0;

	if (attempt)
		rc = number_int("BERTH_ATTEMPT", attempt, 0, 1000000, &self.attempt, err);
	if (!rc && end_time)
		rc = number_int64("BERTH_END_TIME", end_time, 0, INT64_MAX, &self.end_time, err);
	if (!rc && plan)
		rc = local_plan_read(plan, ranks_place(self.ranks)->local_rank, &self.own, err);
	return rc;
}

static void clear(void)
{
	ranks_leave(self.ranks);
	env_free(self.env);
	local_plan_free(&self.own);
	memset(&self, 0, sizeof self);
}

PUBLIC int berth_init(int timeout_ms)
{
	struct error err = {0};

	if (self.count) {
		self.count++;
		return 0;
	}
	self.env = env_capture();
	int rc = self.env ? log_configure(env_get(self.env, "BERTH_LOG"), &err)
			  : error_memory(&err, "the environment");

	if (!rc)
		rc = ranks_join(self.env, timeout_ms, &self.ranks, &err);
	if (!rc)
		rc = read_job(&err);
	if (rc)
		clear();
	else
		self.count = 1;
	return report(rc, &err);
}

PUBLIC int berth_finalize(void)
{
	if (!self.count)
		return not_joined(__func__);
	if (!--self.count)
		clear();
	return 0;
}

#define PLACE(field) (self.count ? ranks_place(self.ranks)->field : not_joined(__func__))

PUBLIC int berth_rank(void)
{
	return PLACE(rank);
}

PUBLIC int berth_size(void)
{
	return PLACE(size);
}

PUBLIC int berth_local_rank(void)
{
	return PLACE(local_rank);
}

PUBLIC int berth_local_size(void)
{
	return PLACE(local_size);
}

PUBLIC int berth_node_rank(void)
{
	return PLACE(node_rank);
}

PUBLIC int berth_port(void)
{
	return PLACE(port);
}

PUBLIC const char *berth_address(void)
{
	if (self.count)
		return ranks_place(self.ranks)->address;
	not_joined(__func__);
	return NULL;
}

PUBLIC const char *berth_job_id(void)
{
	static const char *const names[] = {"BERTH_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID",
					    "TORCHELASTIC_RUN_ID"};

	for (size_t i = 0; self.count && i < sizeof names / sizeof *names; i++)
		if (env_get(self.env, names[i]))
			return env_get(self.env, names[i]);
	return NULL;
}

PUBLIC int berth_attempt(void)
{
	return self.count ? self.attempt : not_joined(__func__);
}

PUBLIC int64_t berth_end_time(void)
{
	const char *file = self.count ? env_get(self.env, "BERTH_END_TIME_FILE") : NULL;
	int64_t end_time = self.end_time;

	if (!self.count)
		return not_joined(__func__);
	if (file)
		file_read_number(file, 1, INT64_MAX, &end_time);
	return end_time;
}

PUBLIC int berth_stop_requested(void)
{
	if (!self.count)
		return not_joined(__func__);
	const char *file = env_get(self.env, "BERTH_STOP_FILE");

	return file && !access(file, F_OK);
}

PUBLIC const struct berth_plan *berth_plan(void)
{
	return self.count && self.own.json ? &self.own.plan : NULL;
}

PUBLIC int berth_barrier(int timeout_ms)
{
	struct error err = {0};

	if (!self.count)
		return not_joined(__func__);
	pthread_mutex_lock(&exchange);
	int rc = ranks_barrier(self.ranks, timeout_ms, &err);

	pthread_mutex_unlock(&exchange);
	return report(rc, &err);
}

PUBLIC int berth_put(const char *key, const void *data, size_t size)
{
	struct error err = {0};

	if (!self.count)
		return not_joined(__func__);
	if (!key || (size && !data))
		return error_set(&last, ERR_USAGE, "berth_put: %s is NULL", key ? "data" : "key");
	pthread_mutex_lock(&exchange);
	int rc = ranks_put(self.ranks, key, data, size, &err);

	pthread_mutex_unlock(&exchange);
	return report(rc, &err);
}

PUBLIC int berth_get(int rank, const char *key, int timeout_ms, void **data, size_t *size)
{
	struct error err = {0};

	if (!self.count)
		return not_joined(__func__);
	if (!key || !data || !size)
		return error_set(&last, ERR_USAGE, "berth_get: %s is NULL",
				 !key	 ? "key"
				 : !data ? "data"
					 : "size");
	pthread_mutex_lock(&exchange);
	int rc = ranks_get(self.ranks, rank, key, timeout_ms, data, size, &err);

	pthread_mutex_unlock(&exchange);
	return report(rc, &err);
}

PUBLIC void berth_free(void *data)
{
	free(data);
}
