package io.netty.handler.codec.http;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.*;

/** Stands in for netty's: Hadoop 2.7 decodes path() itself, and the netty beside it has done so already: '%' and '+' broke. */
public class QueryStringDecoder {
  private final String path;
  private final Map<String, List<String>> parameters = new LinkedHashMap<>();

  public QueryStringDecoder(String uri) {
    String[] parts = uri.split("\\?", 2);
    path = parts[0];
    for (String pair : (parts.length > 1 ? parts[1] : "").split("[&;]")) {
      if (pair.isEmpty()) continue;
      String[] words = (pair + "=").split("=", 3);
      parameters.computeIfAbsent(decoded(words[0]), key -> new ArrayList<>()).add(decoded(words[1]));
    }
  }

  public String path() {
    return path;
  }

  public Map<String, List<String>> parameters() {
    return parameters;
  }

  private static String decoded(String text) {
    return URLDecoder.decode(text, StandardCharsets.UTF_8);
  }
}
