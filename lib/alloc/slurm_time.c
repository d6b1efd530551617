/* SPDX-License-Identifier: BSD-3-Clause */
/* When Slurm will end the job, where its variables do not say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/ask.h"
#include "alloc/slurm.h"
#include "base/number.h"

#define DAYS_MAX 36500
#define ANSWER_MAX 63

int slurm_time_left(const char *text, int64_t *seconds, struct error *err)
{
	char copy[64], *at = copy + strspn(text, " \n"), *dash;
	int64_t days = 0, total = 0;
	size_t size;
	int fields = 0, rc = 0;

	snprintf(copy, sizeof copy, "%s", text);
	size = strcspn(at, " \n");
	if (at[size + strspn(at + size, " \n")] || strlen(text) >= sizeof copy)
		return error_set(err, ERR_DATA, "'%.60s' is no time", text);
	at[size] = '\0';
	if (!strcmp(at, "UNLIMITED") || !strcmp(at, "NOT_SET"))
		return 1;
	dash = strchr(at, '-');
	if (dash) {
		*dash = '\0';
		rc = number_int64("the days", at, 0, DAYS_MAX, &days, err);
		at = dash + 1;
	}
	for (char *next = at; !rc && next; fields++) {
		char *field = strsep(&next, ":");
		int64_t value;

		/* The first field may be large (minutes over an hour), the others are 0 to 59. */
		rc = number_int64("the time", field, 0, fields ? 59 : 24 * 3600, &value, err);
		total = total * 60 + (rc ? 0 : value);
	}
	if (!rc && (fields > 3 || (dash && fields != 3)))
		rc = error_set(err, ERR_DATA, "'%.60s' is no time such as 1-02:00:00", text);
	if (rc) {
		error_prefix(err, "the time left");
		return rc;
	}
	*seconds = days * 86400 + total;
	return 0;
}

static void say(struct alloc *alloc, const char *why)
{
	free(alloc->end_why);
	alloc->end_why = strdup(why); /* without memory it is merely not said */
}

void slurm_ask_end_time(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	char *const argv[] = {(char *)"squeue", (char *)"-h", (char *)"-j", alloc->job_id,
			      (char *)"-o",	(char *)"%L",  NULL};
	struct ask_answer answer;
	char why[160];
	int64_t left;
	enum ask_end end;
	int rc;

	if (strcmp(alloc->source, "slurm") != 0 || alloc->end_time)
		return;
	end = ask_tool(argv, env, timeout_ms, ANSWER_MAX, &answer);
	if (end == ASK_NONE) {
		say(alloc, "SLURM_JOB_END_TIME is not set, and there is no squeue to ask");
		return;
	}
	if (end == ASK_LATE) {
		snprintf(why, sizeof why, "SLURM_JOB_END_TIME is not set, and squeue gave no "
			 "answer within %d ms", timeout_ms);
		say(alloc, why);
		return;
	}
	answer.text[strcspn(answer.text, "\n")] = '\0';
	rc = slurm_time_left(answer.text, &left, NULL);
	if (rc == 1) {
		say(alloc, "squeue: the job has no time limit");
	} else if (rc) {
		snprintf(why, sizeof why,
			 "SLURM_JOB_END_TIME is not set, and squeue does not know the time left ('%.40s')",
			 answer.text);
		say(alloc, why);
	} else {
		alloc->end_time = (int64_t)time(NULL) + left;
		snprintf(why, sizeof why, "squeue: %.40s left", answer.text);
		say(alloc, why);
	}
	free(answer.text);
}
