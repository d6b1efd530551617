/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/env_hide.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static char placeholder[] = "BERTH_HIDDEN=";

static bool names_it(const char *const *names, const char *entry)
{
	for (; *names; names++) {
		size_t length = strlen(*names);

		if (strncmp(entry, *names, length) == 0 && entry[length] == '=')
			return true;
	}
	return false;
}

void env_hide(const char *const *names, struct env_hidden *out)
{
	out->count = 0;
	for (size_t i = 0; environ && environ[i] && out->count < ENV_HIDE_MAX; i++) {
		if (!names_it(names, environ[i]))
			continue;
		out->at[out->count] = i;
		out->entry[out->count++] = environ[i];
		environ[i] = placeholder;
	}
}

void env_show(struct env_hidden *hidden)
{
	for (size_t i = 0; i < hidden->count; i++)
		environ[hidden->at[i]] = hidden->entry[i];
	hidden->count = 0;
}
