/* SPDX-License-Identifier: BSD-3-Clause */
/* The text of --ready. */
#include "roles/roles.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/number.h"

static int refuse(const char *text, const char *why, struct error *err)
{
	return error_set(
		err, ERR_USAGE,
		"--ready '%.200s': %s; expected tcp, tcp:PORT, http:/PATH, http:[HOST]:PORT/PATH, "
		"file:PATH or command:LINE",
		text, why);
}

/* "HOST:PORT", ":PORT", "PORT" (tcp only), "[::1]:PORT"; "+N" for port N of --ports. */
static int read_place(const char *text, char *place, struct job_ready *out, struct error *err)
{
	char *colon = strrchr(place, ':'), *port = colon ? colon + 1 : place, *end;

	if (!colon && strspn(place, "+0123456789") != strlen(place))
		return refuse(text, "a ready address without a port", err);
	out->of_block = *port == '+';
	if (out->of_block
		    ? number_int("--ready", port + 1, 0, LAUNCH_PORTS_MAX - 1, &out->port, NULL)
		    : number_int("--ready", port, 1, 65535, &out->port, NULL))
		return refuse(text, "a ready address without a valid port", err);
	if (!colon)
		*place = '\0';
	else
		*colon = '\0';
	end = strchr(place, ']');
	if (*place == '[' && end) {
		*end = '\0';
		place++;
	}
	out->host = place;
	return 0;
}

int roles_read_ready(const char *text, struct job_ready *out, struct error *err)
{
	static const char *const kinds[] = {"tcp", "http", "file", "command"};
	const char *rest = text + strcspn(text, ":"), *slash;
	size_t i = 0;
	bool url;

	while (i < 4 && (strlen(kinds[i]) != (size_t)(rest - text) ||
			 strncmp(text, kinds[i], strlen(kinds[i])) != 0))
		i++;
	if (i == 4 || (i >= 2 && !*rest))
		return refuse(text, "an unknown kind", err);
	if (*rest && !*++rest)
		return refuse(text, "nothing follows the ':'", err);
	out->text = text;
	out->kind = kinds[i];
	out->path = out->host = "";
	if (i >= 2) {
		out->path = rest;
		return 0;
	}
	url = i == 1 && !strncmp(rest, "//", 2);
	rest += url ? 2 : 0;
	slash = i == 1 ? strchr(rest, '/') : NULL;
	out->path = slash ? slash : "/";
	free(out->place);
	out->place = strndup(rest, slash ? (size_t)(slash - rest) : strlen(rest));
	if (!out->place)
		return error_memory(err, "--ready");
	out->host = out->place;
	out->port = 0; /* that of the role */
	out->of_block = false;
	return *out->place || url ? read_place(text, out->place, out, err) : 0;
}
