import java.io.IOException;
import java.nio.charset.StandardCharsets;
import javax.servlet.*;
import javax.servlet.http.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.http.FilterContainer;
import org.apache.hadoop.http.FilterInitializer;

/** Answers WebHDFS requests with noredirect=true as NameNodes after 2.7 do: 200 and {"Location": …} instead of 307. */
public class NoRedirect implements Filter {
  public static class Init extends FilterInitializer {
    @Override
    public void initFilter(FilterContainer container, Configuration conf) {
      container.addGlobalFilter("noredirect", NoRedirect.class.getName(), null);
    }
  }

  /** Keeps a redirect's address and status to itself. */
  static class Held extends HttpServletResponseWrapper {
    String location;
    boolean redirected;

    Held(HttpServletResponse response) {
      super(response);
    }

    @Override
    public void setHeader(String name, String value) {
      if (name.equalsIgnoreCase("Location")) location = value;
      else super.setHeader(name, value);
    }

    @Override
    public void addHeader(String name, String value) {
      if (name.equalsIgnoreCase("Location")) location = value;
      else super.addHeader(name, value);
    }

    @Override
    public void setContentType(String type) {
      if (!redirected) super.setContentType(type);
    }

    @Override
    public void setStatus(int status) {
      if (status == 307) redirected = true;
      else super.setStatus(status);
    }

    @Override
    @Deprecated
    public void setStatus(int status, String reason) {
      setStatus(status);
    }
  }

  @Override
  public void init(FilterConfig config) {}

  @Override
  public void destroy() {}

  @Override
  public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    String query = "&" + ((HttpServletRequest) request).getQueryString() + "&";
    if (!query.toLowerCase().contains("&noredirect=true&")) {
      chain.doFilter(request, response);
      return;
    }
    HttpServletResponse real = (HttpServletResponse) response;
    Held held = new Held(real);
    chain.doFilter(request, held);
    if (held.location == null) return;
    if (!held.redirected) {
      real.setHeader("Location", held.location);
      return;
    }
    byte[] body = ("{\"Location\":\"" + held.location + "\"}").getBytes(StandardCharsets.UTF_8);
    real.setContentType("application/json");
    real.setContentLength(body.length);
    real.getOutputStream().write(body);
  }
}
