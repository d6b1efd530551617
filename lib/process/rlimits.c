/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/rlimits.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"

void limits_read(struct limits *out)
{
	struct rlimit limit;

	*out = (struct limits){.known = true, .umask = umask(0)};
	umask(out->umask);
	for (int i = 0; i < RLIM_NLIMITS; i++)
		out->soft[i] = getrlimit(i, &limit) ? RLIM_INFINITY : limit.rlim_cur;
}

json_t *limits_to_json(const struct limits *limits)
{
	json_t *soft = limits->known ? json_array() : NULL;

	for (int i = 0; soft && i < RLIM_NLIMITS; i++)
		json_array_append_new(soft, json_integer((json_int_t)limits->soft[i]));
	return soft ? json_pack("{s:i, s:o}", "umask", (int)limits->umask, "soft", soft) : NULL;
}

void limits_from_json(const json_t *json, struct limits *out)
{
	const json_t *mask = json_object_get(json, "umask"), *soft = json_object_get(json, "soft");

	*out = (struct limits){.known = json_is_integer(mask) &&
					json_array_size(soft) == RLIM_NLIMITS,
			       .umask = (mode_t)(json_integer_value(mask) & 0777)};
	for (size_t i = 0; out->known && i < RLIM_NLIMITS; i++) {
		out->known = json_is_integer(json_array_get(soft, i));
		out->soft[i] = (rlim_t)json_integer_value(json_array_get(soft, i));
	}
}

void limits_apply(const struct limits *limits)
{
	for (int i = 0; limits->known && i < RLIM_NLIMITS; i++) {
		rlim_t wanted = limits->soft[i];
		struct rlimit limit;

		if (getrlimit(i, &limit) || (i == RLIMIT_MEMLOCK && wanted < limit.rlim_cur))
			continue;
		limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
		setrlimit(i, &limit);
	}
}

void limits_lacking(const struct limits *limits, char *text, size_t size)
{
	static const char *const names[RLIM_NLIMITS] = {
		[RLIMIT_CPU] = "CPU seconds",	    [RLIMIT_FSIZE] = "file size",
		[RLIMIT_DATA] = "data size",	    [RLIMIT_STACK] = "stack size",
		[RLIMIT_CORE] = "core file size",   [RLIMIT_RSS] = "resident memory",
		[RLIMIT_NPROC] = "processes",	    [RLIMIT_NOFILE] = "open files",
		[RLIMIT_MEMLOCK] = "locked memory", [RLIMIT_AS] = "virtual memory",
	};

	text[0] = '\0';
	for (int i = 0; limits->known && i < RLIM_NLIMITS; i++) {
		struct rlimit limit;
		char wanted[32] = "unlimited";

		if (!names[i] || getrlimit(i, &limit) || limits->soft[i] <= limit.rlim_max)
			continue;
		if (limits->soft[i] != RLIM_INFINITY)
			snprintf(wanted, sizeof wanted, "%llu",
				 (unsigned long long)limits->soft[i]);
		text_append(text, size, "%s%s: %llu of %s", *text ? ", " : "", names[i],
			    (unsigned long long)limit.rlim_max, wanted);
	}
}
